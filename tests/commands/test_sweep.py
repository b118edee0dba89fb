"""`python train.py -m`: every point in a process of its own, then their comparison; `into=DIR` extends a sweep."""

import os
import re
import shutil
from pathlib import Path

import pytest
from command_line import MLP, all_runs, only_run, only_sweep, wait_until
from devices import device_lock
from recorded_sweeps import SEARCH

from ampsweep.records import RunRecord


def test_each_run_has_its_own_process_and_seeds_vary_slowest(swept):
    records = [run.record for run in swept.runs]
    assert [(record.identity.seed, record.arm) for record in records] == [
        (seed, arm) for seed in (0, 1) for arm in ("fp32", "amp_bf16", "tf32")
    ]
    pids = {attempt.pid for record in records for attempt in record.attempts}
    assert len(pids - {os.getpid()}) == 4
    for run in swept.runs[2::3]:
        assert (run.record.status, run.history) == ("unsupported", []), "an arm that the device cannot do"
        assert "compute capability 8.0" in run.record.error


def test_a_run_of_a_sweep_is_bitwise_the_run_alone(swept, train):
    assert train(*MLP, "trainer.steps=6", "device=cpu", "precision=amp_bf16", "seed=1").code == 0
    alone = only_run()
    (same,) = [run for run in swept.runs if run.record.config_hash == alone.record.config_hash]
    assert same.record.pair_key == alone.record.pair_key
    for key in ("train/loss", "train/grad_norm", "val/loss"):
        assert same.column(key) == alone.column(key)


def test_a_line_for_each_run_and_the_comparison_are_printed(swept):
    ended = swept.ended
    assert (ended.code, ended.said, len(ended.runs)) == (0, [], 6)
    assert not {"\x1b", "\r"} & {*ended.out, *ended.err}, "there is no terminal"
    assert "2 of 2 pairs completed, 3 are needed" in ended.words
    assert str(swept.directory / "comparison.md") in ended.out
    for shown in (ended.out, *((swept.directory / f"comparison.{kind}").read_text() for kind in ("md", "json"))):
        assert {"fp32", "amp_bf16", "tf32", "unsupported"} <= set(re.findall(r"\w+", shown))


def test_a_point_given_twice_is_trained_once(train):
    assert train("-m", *MLP, "trainer.steps=4", "seed=0,0").code == 0
    assert (len(only_run().record.attempts), len(only_run().history)) == (1, 2)


def test_models_that_are_swept_bring_their_own_data(recorded):
    identities = [run.record.identity for run in recorded("keys").runs]
    found = [(identity.model, identity.data) for identity in identities]
    assert found == [("gpt_tiny", "text"), ("mlp_small", "digits")]


def test_a_dry_run_checks_the_points_and_writes_nothing(swept, train, tmp_path):
    ended = train(*swept.arguments, "dry_run=true")
    assert (ended.code, ended.said) == (0, [])
    rows = ended.out.splitlines()[:12]
    assert ["#", "arm", "model", "data", "seed"] in [row.split()[:5] for row in rows]
    cells = [row.split() for row in rows if re.match(r"\d +\S+ +mlp", row)]
    assert [(row[1], row[4]) for row in cells] == [(arm, seed) for seed in "01" for arm in ("fp32", "amp_bf16", "tf32")]
    assert [row[-1] for row in cells] == ["s", "s", "unsupported"] * 2
    assert "6 points, 4 to train; about" in ended.out
    assert "compute capability 8.0" in ended.out
    alone = train(*MLP, "trainer.steps=4", "dry_run=true")
    assert (alone.code, alone.said, "1 point, 1 to train; about" in alone.out) == (0, [], True)
    searching = train(*SEARCH, "precision=fp32", "dry_run=true").out
    assert ("searches its batch" in searching, "1 to train; about" in searching) == (True, True)
    unpredicted = train(*SEARCH, "precision=fp32", "predict.with_runs=false", "dry_run=true").out
    assert "1 to train; how long is unknown; nothing is written" in unpredicted, "and not 0.0 s"
    assert not list(tmp_path.iterdir())


def test_a_sweep_decides_how_many_seeds_it_takes_over_ctrl_c(start, train):
    arms = ("-m", *MLP, "trainer.steps=40", "precision=fp32,amp_bf16")
    decide = ("report.decide=true", "report.margin_pct=40", "report.max_seeds=5", "report.run_seconds=100")
    planned = train(*arms, *decide, "dry_run=true")
    assert (planned.code, "2 arms with 3 to 5 seeds" in planned.words, all_runs()) == (0, True, [])
    begun = start(*arms, *decide)
    wait_until(lambda: (runs := all_runs()) and runs[0].record.status == "completed", "the first run")
    begun.ctrl_c()
    assert begun.finish().code == 1
    into, finished = only_sweep(), [run.directory for run in all_runs() if run.record.status == "completed"]
    written = [(directory / "run.json").read_bytes() for directory in finished]
    ended = train(*arms, *decide, f"into={into}")
    assert ended.code == 0
    assert [(directory / "run.json").read_bytes() for directory in finished] == written
    records = [run.record for run in all_runs()]
    seeds = sorted(record.identity.seed for record in records if record.arm == "amp_bf16")
    assert seeds == sorted(record.identity.seed for record in records if record.arm == "fp32")
    assert seeds in [[*range(num)] for num in range(3, 12)], "parity takes five at most, speed some more"
    assert any(": further ones would decide no more" in line or "is reached after" in line for line in ended.said)
    assert "equivalent" in ended.out


SWEEP_FILE = """
program: train.py
method: grid
parameters:
  name: {value: small}
  model: {value: mlp_small}
  precision: {values: [fp32, amp_bf16]}
  trainer.steps: {value: 4}
  trainer.log_every: {value: 2}
  tracking: {value: disabled}
"""


def test_a_sweep_file_is_run_here_as_one_multirun_that_can_be_extended(ampsweep, tmp_path):
    (tmp_path / "small.yaml").write_text(SWEEP_FILE)
    assert ampsweep("sweep", "small.yaml", "--count", "1").code == 0
    (first,) = all_runs()
    written = (first.directory / "run.json").read_bytes()
    ended = ampsweep("sweep", "small.yaml", f"into={only_sweep()}")
    facts = [(run.record.arm, run.record.identity.experiment, [*run.column("train/loss")]) for run in all_runs()]
    assert facts == [("fp32", "small", [2, 4]), ("amp_bf16", "small", [2, 4])]
    assert (first.directory / "run.json").read_bytes() == written, "it was finished"
    assert (ended.code, "amp_bf16" in ended.out) == (0, True)


def test_a_wrong_sweep_file_starts_nothing(ampsweep, tmp_path):
    (tmp_path / "small.yaml").write_text(SWEEP_FILE)
    for given, said in {
        ("model=mlp_smal",): "small.yaml: model=mlp_smal: no such option; did you mean mlp_small? Allowed are ",
        ("seed=0,1",): "small.yaml: seed=0,1 names several values for one point",
        ("--count", "0"): "--count 0: must be at least 1",
    }.items():
        ended = ampsweep("sweep", "small.yaml", *given)
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert ended.err.startswith(f"error: {said}")
    assert not (tmp_path / "outputs").exists()


def states(directory: Path) -> dict[Path, tuple[int, bytes]]:
    """Modification time and content of every file of every run."""
    files = [path for run in all_runs(directory) for path in run.directory.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_new_arm_and_a_new_seed_join_the_finished_runs(copied, train):
    before = states(copied.directory)
    both = ("-m", *copied.arguments[1:-2], "seed=0,2", "precision=fp32,pure_bf16", f"into={copied.directory}")
    planned = train(*both, "dry_run=true")
    assert all(part in planned.out for part in ("finished earlier", "4 points, 3 to train"))
    ended = train(*both)
    assert (ended.code, ended.said) == (0, ["1 of 4 runs finished earlier"])
    assert [line.split()[:2] for line in ended.runs] == [["2/4", "pure_bf16"], ["3/4", "fp32"], ["4/4", "pure_bf16"]]
    assert before.items() <= states(copied.directory).items()
    new = [run.record for run in all_runs(copied.directory) if run.directory / "run.json" not in before]
    assert [(record.identity.seed, record.arm) for record in new] == [(0, "pure_bf16"), (2, "fp32"), (2, "pure_bf16")]
    comparison = (copied.directory / "comparison.md").read_text()
    assert all(arm in comparison for arm in ("amp_bf16", "pure_bf16")), "the earlier arms, too"
    assert not list(Path("outputs").glob("train/*/*/2*")), "nothing was begun elsewhere"


@pytest.mark.nightly
def test_a_point_that_another_sweep_trains_is_not_trained_again(copied, start, tmp_path):
    run = all_runs(copied.directory)[0]
    other = run.directory.rename(tmp_path / "other")
    with device_lock("cpu"):
        sweep = start(*copied.arguments, f"into={copied.directory}")
        wait_until(lambda: "waiting for cpu" in sweep.process.stderr.readline(), "it waits for the device")
        shutil.copytree(other, run.directory, dirs_exist_ok=True, copy_function=shutil.copy)
    assert sweep.finish().code == 0
    assert RunRecord.read(run.directory).attempts == RunRecord.read(other).attempts


def test_a_failed_run_is_trained_again(train):
    """The user's model raises until its author has repaired it."""
    broken = ("model=custom", "model._target_=own_models.Broken", "+model.what=raises", "data=digits")
    command = ("-m", *MLP[1:], *broken, "trainer.steps=4")
    assert train(*command).code == 1
    assert only_run().record.status == "failed"
    Path("cure").touch()
    assert train(*command, f"into={only_sweep()}").code == 0
    run = only_run()
    assert (run.record.status, run.record.error) == ("completed", None)
    assert [row["step"] for row in run.history] == [2, 4]
    assert not (run.directory / "error.txt").exists()


def test_a_point_with_an_unreadable_record_is_trained_beside_it(copied, train):
    run, *_ = copied.runs
    newer = (run.directory / "run.json").read_text().replace('"schema": 1', '"schema": 7')
    (run.directory / "run.json").write_text(newer)
    before = states(copied.directory)
    ended = train(*copied.arguments, f"into={copied.directory}")
    said, finished = ended.said
    assert (ended.code, finished) == (0, "5 of 6 runs finished earlier")
    assert said.endswith(
        "run.json is a run record of schema 7; this version of ampsweep reads schema 1; its point counts as not run"
    )
    assert before.items() <= states(copied.directory).items()
    assert RunRecord.read(run.directory.with_name(f"{run.directory.name}-2")).status == "completed"
    assert "is a run record of schema 7" in ended.out


@pytest.mark.nightly
def test_files_that_a_killed_process_left_are_removed(train):
    command = ("-m", *MLP, "trainer.steps=2", "device=cpu")
    train(*command)
    hydra = only_run().directory / ".hydra"
    (hydra / ".config.yaml.01234567").touch()
    (hydra.parent / "run.json").unlink()
    train(*command, f"into={hydra.parents[1]}")
    assert {path.name for path in hydra.iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}
