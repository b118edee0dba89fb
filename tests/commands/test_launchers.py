"""Several processes: Hydra's launchers, never two trainings at once on a device; two ranks with one record."""

import json
import re
from pathlib import Path

import pytest
import torch
from command_line import PATIENCE_S, all_runs, wait_until
from devices import needs_gpus
from recorded_sweeps import COMMANDS

from ampsweep.commands.dry_run import plan_document
from ampsweep.config.compose import compose_points
from ampsweep.report.document import tables
from ampsweep.report.markdown import markdown
from ampsweep.sweep.preflight import Checked

OWN = ("data=digits", "tracking=disabled", "predict.with_runs=false")  # a prediction calls the model, too


@pytest.mark.nightly
def test_runs_of_two_joblib_workers_come_one_after_the_other(train, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    noted = ("model=custom", "model._target_=own_models.Noted", f"+model.notes={tmp_path}/notes")
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "precision=fp32,amp_bf16")
    ended = train("-m", *noted, *OWN, *launcher, "trainer.steps=10", "trainer.log_every=5")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.runs] == ["1/2", "2/2"], "by the process that waits for them, once"
    assert all(re.search(r"completed .* ms a step +peak .* val loss", line) for line in ended.runs)
    runs = sorted(all_runs(), key=lambda run: run.record.arm)
    assert [(run.record.arm, run.record.status) for run in runs] == [("amp_bf16", "completed"), ("fp32", "completed")]
    assert [[row["step"] for row in run.history] for run in runs] == [[5, 10], [5, 10]]
    assert "1 of 1 pair completed" in ended.words

    steps = sorted(tuple(map(int, line.split())) for line in Path("notes").read_text().splitlines())
    processes = [process for _, process in steps]
    assert len(processes) == 20
    assert set(processes) == {run.record.attempts[0].pid for run in runs}
    assert len(set(processes[:10])) == len(set(processes[10:])) == 1, "both trained at once"


@needs_gpus(2)
def test_joblib_workers_train_at_once_on_gpus_of_one_model(train, tmp_path):
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if (number := names.count(names[0])) < 2:
        pytest.skip("needs two GPUs of one model")
    met = tmp_path / "met"
    met.mkdir()
    ended = train(
        *("-m", "model=custom", "model._target_=own_models.Met", f"+model.folder={met}", f"+model.number={number}"),
        *(*OWN, "trainer.steps=40", "trainer.warmup_steps=2", "device=auto", "precision=fp32"),
        f"seed={','.join(map(str, range(number)))}",
        *("hydra/launcher=joblib", f"hydra.launcher.n_jobs={number}"),
    )
    assert ended.code == 0, ended.err
    records = [run.record for run in all_runs()]
    assert len({record.identity.device for record in records}) == len(records) == number
    times = [json.loads((met / str(record.attempts[0].pid)).read_text()) for record in records]
    assert max(began for began, _ in times) < min(over for _, over in times), "all computed at the same time"
    reasons = [reason for record in records for reason in record.contamination.reasons or ()]
    assert not [reason for reason in reasons if "computed on" in reason], "no other run has a context on its GPU"


FAILURES = {
    ("raises", 0): ("failed", "rank 0: RuntimeError: my model broke"),
    ("is_killed", 0): ("failed", "rank 0: it was killed by SIGKILL"),
    ("is_killed", 1): ("failed", "rank 1: it was killed by SIGKILL"),
    ("leaves", 1): ("failed", "rank 1: its process ended with exit code 7 without a result"),
    ("runs_out_of_memory", 1): ("oom", "rank 1: out of memory in forward of step 3: 3638 TiB asked for with "),
    ("diverges", 1): ("diverged", "the training loss is nan at step 3"),
}
"""What a model does on one of two ranks, with the status and the error of the one record."""


def test_ranks_have_one_record_and_a_failing_rank_ends_all(recorded):
    swept = recorded("ranks")
    fine, failed = (run.record for run in swept.runs)
    assert swept.ended.code == 1
    assert (fine.status, fine.identity.parallel, fine.identity.world_size) == ("completed", "ddp", 2)
    assert fine.identity.global_batch_size == 2 * fine.identity.batch_size
    assert [row["step"] for row in swept.runs[0].history] == [1, 2, 3, 4, 5, 6]
    assert fine.memory.peak["communication"] > 0
    assert (failed.status, failed.identity.world_size) == ("failed", 2)
    assert failed.error.startswith("rank 1: RuntimeError: my model broke (")


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 1])
def test_any_failure_of_a_rank_ends_all_and_leaves_no_process(rank, start, tmp_path):
    failures = {what: failure for (what, at), failure in FAILURES.items() if at == rank}
    arguments = [word for word in COMMANDS["ranks"] if not word.startswith(("+model.", "trainer.steps"))]
    sweep = start(*arguments, "trainer.steps=40", f"+model.rank={rank}", f"+model.what={','.join(failures)}")
    sweep.process.communicate(timeout=10 * PATIENCE_S)
    wait_until(lambda: not sweep.alive(), "every process has ended")
    runs = {run.record.config["model"]["what"]: run for run in all_runs()}
    assert runs.keys() == failures.keys()
    for what, (status, sentence) in failures.items():
        assert runs[what].record.status == status, runs[what].record.error
        assert runs[what].record.error.startswith(sentence)
        ended, broke = runs[what].directory / "run.json", tmp_path / f"{what}-{rank}"
        assert ended.stat().st_mtime - broke.stat().st_mtime < 30


def test_a_plan_names_the_strategy_and_counts_a_point_once():
    overrides = ["parallel=ddp,fsdp2", "parallel.num_processes=2", "parallel.mixed_precision=policy,autocast"]
    configs = [point.config for point in compose_points([*overrides, "precision=amp_bf16"], multirun=True).points]
    document = plan_document(configs, [Checked(num_steps=3, num_parameters=7)] * len(configs), elsewhere=True)
    (table,) = tables(document)
    assert [row.cells[4].text for row in table.rows] == ["ddp x2", "ddp x2", "fsdp2 x2", "fsdp2 x2"]
    assert "4 points, 3 to train" in markdown(document)
