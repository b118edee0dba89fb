"""`into=DIR`: an earlier sweep is completed and extended; finished runs stay as they are."""

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


def test_a_new_arm_and_a_new_seed_join_the_finished_runs(copied, train):
    before = states(copied.directory)
    both = ("-m", *copied.arguments[1:-2], "seed=0,2", "precision=fp32,pure_bf16", f"into={copied.directory}")
    planned = train(*both, "dry_run=true")
    assert planned.code == 0
    assert "finished earlier" in planned.out
    assert "4 points, 3 to train" in planned.out
    ended = train(*both)
    assert (ended.code, ended.said) == (0, ["1 of 4 runs finished earlier"])
    assert [line.split()[:2] for line in ended.runs] == [["2/4", "pure_bf16"], ["3/4", "fp32"], ["4/4", "pure_bf16"]]
    assert before.items() <= states(copied.directory).items()
    new = [run.record for run in all_runs(copied.directory) if run.directory / "run.json" not in before]
    assert [(record.identity.seed, record.arm, record.status) for record in new] == [
        (0, "pure_bf16", "completed"),
        (2, "fp32", "completed"),
        (2, "pure_bf16", "completed"),
    ]
    comparison = (copied.directory / "comparison.md").read_text()
    assert "amp_bf16" in comparison, "the new comparison has the earlier arms too"
    assert "pure_bf16" in comparison
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
    """A newer version may have written it: it is reported and left as it is."""
    run = next(run for run in all_runs(copied.directory) if run.record.arm == "fp32")
    newer = (run.directory / "run.json").read_text().replace('"schema": 1', '"schema": 7')
    (run.directory / "run.json").write_text(newer)
    before = states(copied.directory)
    ended = train(*copied.arguments, f"into={copied.directory}")
    assert ended.code == 0
    said, finished = ended.said
    assert finished == "5 of 6 runs finished earlier"
    assert "run.json is a run record of schema 7; this version of ampsweep reads schema 1" in said
    assert said.endswith("its point counts as not run")
    assert before.items() <= states(copied.directory).items()
    assert (run.directory / "run.json").read_text() == newer
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
