"""What becomes of a run that W&B alone knows: its arm, seed, time, memory and history, whatever tool logged it."""

import json
from types import SimpleNamespace

import pytest

from ampsweep.config.claims import named_mode
from ampsweep.records import RunRecord, read_history
from ampsweep.tracking.wandb.foreign_run import ForeignKeys, arm_label, write_foreign
from ampsweep.tracking.wandb.library import WandbError

GPU, PROCESS = "system.gpu.{}.memoryAllocatedBytes", "system.gpu.process.{}.memoryAllocatedBytes"
HOST = "proc.memory.rssMB"
GIB = 2**30


def of(rows=(), events=(), config=None, **more):
    """A run as W&B's library shows it."""
    facts = {"id": "r1", "name": "r1", "entity": "team", "project": "p", "state": "finished", "group": None}
    facts |= {"url": "https://wandb.ai/r1", "created_at": "2026-01-01", "metadata": None, "summary_metrics": {}}
    run = SimpleNamespace(**{**facts, "config": {"seed": 0, "precision": "bf16-mixed"} | (config or {}), **more})
    run.scan_history = lambda use_cache: rows
    run.history = lambda samples, pandas, stream: list(events)
    return run


@pytest.fixture
def read(tmp_path):
    def read(run, keys=ForeignKeys(("precision",))) -> RunRecord:  # noqa: B008  frozen
        assert write_foreign(run, keys, tmp_path) is None
        return RunRecord.read(tmp_path)

    return read


def test_arms_have_the_words_of_their_config():
    assert [arm_label({"k": value}) for value in (16, "bf16-mixed", None)] == ["16", "bf16-mixed", "None"]
    flags = [{"fp16": fp16, "args.bf16": bf16} for fp16, bf16 in ((True, False), (False, "True"), (False, False))]
    assert [arm_label(flag) for flag in flags] == ["fp16", "bf16", "no fp16 no bf16"]
    assert [named_mode(arm_label(flag)).name for flag in flags] == ["amp_fp16", "amp_bf16", "fp32"]
    assert arm_label({"precision": "bf16", "compile": True}) == "bf16 compile"


def test_rows_of_one_step_become_one_and_non_numbers_none(read, tmp_path):
    rows = [
        {"_step": 0, "_runtime": 1.0, "train/global_step": 10, "train/loss": 2.0, "text": "x"},
        {"_step": 1, "train/global_step": 10, "eval": {"loss": "NaN"}, "img": {"_type": "image", "n": 1}},
        {"_step": 2, "_runtime": 3.0, "train/global_step": 5, "train/loss": 3, "flag": True, "none": None},
    ]
    record = read(of(rows, summary_metrics={"best": 0.1, "eval": {"loss": {"min": 1}}, "_wandb": {"runtime": 9}}))
    assert [str(row) for row in read_history(tmp_path)] == [
        "{'step': 5, 'train/loss': 3}",
        "{'step': 10, 'train/loss': 2.0, 'eval.loss': nan}",
    ]
    assert record.summary == {"best": 0.1, "eval.loss.min": 1, "train/loss": 2.0, "eval.loss": "NaN"}
    assert (record.source, record.arm, record.identity.seed, record.status) == ("wandb", "bf16-mixed", 0, "completed")
    assert (record.identity.dtype, record.identity.model, record.identity.batch_size) == (None, None, None)


@pytest.mark.parametrize(
    ("step_key", "rows", "ms", "counted"),
    [
        pytest.param("s", [], None, None, id="no_row"),
        pytest.param("global_step", [(10, 1.0)], None, None, id="one_row"),
        pytest.param("global_step", [(10, 1.0), (20, 3.0)], 200, "global_step", id="two_rows"),
        pytest.param(
            "trainer/global_step",
            [(10, 1.0), (20, 2.0), (20, 9.0), (30, 10.0), (40, 11.0), (50, 99.0), (60, 100.0), (70, 101.0)],
            *(100, "trainer/global_step"),
            id="evaluations_and_pauses",
        ),
        pytest.param("batch", [(10, 1.0), (20, 3.0)], 2000, "_step", id="nothing_counts_but_wandb"),
    ],
)
def test_time_is_wall_time_between_rows(read, step_key, rows, ms, counted):
    record = read(of([{"_step": n, step_key: step, "_runtime": at} for n, (step, at) in enumerate(rows)]))
    assert record.summary.get("perf/step_ms") == (None if ms is None else pytest.approx(ms))
    assert record.taken_from.steps == counted


@pytest.mark.parametrize(
    ("key", "values", "summary", "ms"),
    [
        ("train_runtime", [], 5.0, 50),
        ("train/train_steps_per_second", [], 4.0, 250),
        ("step_time_ms", [3.0, 2.0, 9.0], None, 3),
        ("sec_per_batch", [0.5, 0.5], None, 500),
        ("avg_step_time", [], 0.25, 250),
        ("train_runtime", [], "NaN", None),
    ],
)
def test_time_can_be_what_the_training_logged(read, key, values, summary, ms):
    rows = [{"_step": 0, "step": 100, "_runtime": 1.0}, *({"_step": 1, "step": 100, key: value} for value in values)]
    run = of(rows, summary_metrics={} if summary is None else {key: summary})
    record = read(run, ForeignKeys(("precision",), time=key))
    assert record.summary.get("perf/step_ms") == ms
    assert record.taken_from.time == (None if ms is None else key)


@pytest.mark.parametrize(
    ("events", "metadata", "process_gib", "device_gib", "source"),
    [
        ([{GPU.format(0): GIB, PROCESS.format(0): GIB}, {GPU.format(1): 3 * GIB}], None, 1, 3, PROCESS.format(0)),
        ([{GPU.format(0): 2 * GIB, HOST: 4096}], None, None, 2, GPU.format(0)),
        ([{HOST: 1024}, {HOST: 2048}], None, 2, None, HOST),
        ([{HOST: 1024}], {"gpu": "Apple M3"}, None, None, None),
        ([], None, None, None, None),
    ],
)
def test_memory_is_the_largest_sample(read, events, metadata, process_gib, device_gib, source):
    record = read(of(events=events, metadata=metadata))
    found = record.summary.get("memory/process_gib"), record.summary.get("device/memory_used_gib")
    assert (*found, record.taken_from.memory) == (process_gib, device_gib, source)


def test_states_machines_and_seeds(read, tmp_path):
    for state, status in {"crashed": "failed", "failed": "failed", "killed": "interrupted"}.items():
        record = read(of(state=state))
        assert (record.status, record.error) == (status, f"its state on W&B is {state}")
    seven = read(of(config={"seed": "7"}, metadata={"gpu": "NVIDIA L4", "host": "n1"}))
    assert (seven.identity.seed, seven.identity.device_name, seven.attempts[0].host) == (7, "NVIDIA L4", "n1")
    assert seven.pair_key != read(of(config={"seed": "7"}, metadata={"gpu": "NVIDIA H100"})).pair_key
    for seed in ("a", None, 0.5, True):
        reason = f"has seed={seed} in its config, which is no whole number"
        assert write_foreign(of(config={"seed": seed}), ForeignKeys(("precision",)), tmp_path) == reason
    reason = write_foreign(of(), ForeignKeys(("amp",), "random_state"), tmp_path)
    assert reason == "has no amp and no random_state in its config"
    read(of(config={"api_key": "secret-of-theirs"}))
    assert "secret-of-theirs" not in json.dumps((tmp_path / "run.json").read_text())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"arms": ("trainer.precison",)}, "arm-key trainer.precison: no run has it; keys with several values are tra"),
        ({"seed": "sed"}, "seed-key sed: no run has it; keys with several values are seed, trainer.precision"),
        ({"time": "runtime"}, "time-key runtime: no run has it; keys with several values are train_runtime"),
        ({"time": "samples_per_second"}, "time-key samples_per_second: is no time; a time, or"),
    ],
)
def test_unknown_keys(keys, said):
    def numbered(n):
        summary = {"train_runtime": n, "samples_per_second": 2.0}
        return of(config={"seed": n, "trainer": {"precision": n}}, summary_metrics=summary)

    with pytest.raises(WandbError) as caught:
        ForeignKeys(**({"arms": ("precision",)} | keys)).check([numbered(0), numbered(1)])
    assert str(caught.value).startswith(f"--{said}")
