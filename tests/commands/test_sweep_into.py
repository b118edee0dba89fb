"""`into=DIR`: an earlier sweep is completed and extended; what is finished stays as it is."""

import shutil
from pathlib import Path

import pytest
from command_line import MLP, all_runs, only_run, only_sweep, wait_until
from devices import device_lock

from ampsweep.record import RunRecord


def states(directory: Path) -> dict[Path, tuple[int, bytes]]:
    """Modification time and content of every file of every run."""
    files = [path for run in all_runs(directory) for path in run.directory.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.mark.slow
def test_a_new_arm_and_a_new_seed_join_the_finished_runs(copied, train):
    before = states(copied.directory)
    both = ("seed=0,2", "precision=fp32,pure_bf16")
    ended = train("-m", *copied.arguments[:-2], *both, f"into={copied.directory}")
    assert (ended.code, ended.said) == (0, ["1 of 4 runs finished earlier"])
    assert [line.split()[:2] for line in ended.runs] == [["2/4", "pure_bf16"], ["3/4", "fp32"], ["4/4", "pure_bf16"]]
    assert before.items() <= states(copied.directory).items()
    new = [run for run in all_runs(copied.directory) if run.directory / "run.json" not in before]
    assert [(run.record.identity.seed, run.record.arm) for run in new] == [
        (0, "pure_bf16"),
        (2, "fp32"),
        (2, "pure_bf16"),
    ]
    assert {run.record.status for run in new} == {"completed"}
    comparison = (copied.directory / "comparison.md").read_text()
    assert "amp_bf16" in comparison, "the arms of before are part of the new comparison"
    assert "pure_bf16" in comparison
    assert not list(Path("outputs").glob("train/*/*/2*")), "nothing was begun elsewhere"


def test_a_dry_run_tells_what_is_finished(copied, train):
    ended = train("-m", *copied.arguments[:-2], "seed=0,2", f"into={copied.directory}", "dry_run=true")
    assert ended.code == 0
    assert "finished earlier" in ended.out
    assert "2 points, 1 to train" in ended.out


@pytest.mark.slow
def test_a_point_that_another_sweep_trains_is_not_trained_again(copied, start, tmp_path):
    run = all_runs(copied.directory)[0]
    other = run.directory.rename(tmp_path / "other")
    with device_lock("cpu"):
        sweep = start("-m", *copied.arguments, f"into={copied.directory}")
        wait_until(lambda: "waiting for cpu" in sweep.process.stderr.readline(), "it waits for the device")
        shutil.copytree(other, run.directory, dirs_exist_ok=True, copy_function=shutil.copy)
    assert sweep.finish().code == 0
    assert RunRecord.read(run.directory).attempts == RunRecord.read(other).attempts


@pytest.mark.slow
def test_a_failed_run_is_trained_again(train):
    """The user's model raises, until its author has repaired it."""
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


@pytest.mark.slow
def test_a_point_with_an_unreadable_record_is_trained_beside_it(copied, train):
    """A newer version may know what stands there: it is said and left as it is."""
    run = next(run for run in all_runs(copied.directory) if run.record.arm == "fp32")
    newer = (run.directory / "run.json").read_text().replace('"schema": 1', '"schema": 7')
    (run.directory / "run.json").write_text(newer)
    before = states(copied.directory)
    ended = train("-m", *copied.arguments, f"into={copied.directory}")
    assert ended.code == 0
    said, finished = ended.said
    assert finished == "5 of 6 runs finished earlier"
    assert "run.json is a run record of schema 7; this version of ampsweep reads schema 1" in said
    assert said.endswith("its point counts as not run")
    again = run.directory.with_name(f"{run.directory.name}-2")
    assert before.items() <= states(copied.directory).items()
    assert (run.directory / "run.json").read_text() == newer
    assert RunRecord.read(again).status == "completed"
    assert "is a run record of schema 7" in ended.out

    ended = train("-m", *copied.arguments, f"into={copied.directory}", "dry_run=true")
    assert "6 points, 0 to train" in ended.out
