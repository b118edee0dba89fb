"""A run that fails is a record; the sweep goes on and says so by its exit code."""

from pathlib import Path

import own_models
import pytest
from command_line import PATIENCE_S, all_runs, only_run, only_sweep
from wandb_file import read_wandb_file

OWN = (
    "model=custom",
    "data=digits",
    "model._target_=own_models.Broken",
    "trainer.steps=5",
    "trainer.log_every=1",
    "tracking=disabled",
)


FAILURES = {
    "raises": ("failed", "RuntimeError: my model broke"),
    "is_killed": ("failed", "killed by SIGKILL"),
    "crashes": ("failed", "killed by SIGSEGV"),
    "aborts": ("failed", "killed by SIGABRT"),
    "hangs": ("failed", "step 3 did not end within 5.0 s (trainer.max_seconds=3, trainer.grace_seconds=2)"),
    "leaves": ("failed", "ended with exit code 7"),
    "exits": ("failed", "sys.exit(5)"),
    "runs_out_of_memory": ("oom", "out of memory in forward of step 3: 3638 TiB asked for with "),
    "is_fine": ("completed", None),
}
"""What a user's model does in its third step, and what then stands in its record."""


def place_of_statement(statement):
    """The first place of a statement in `own_models`, as a sentence names it."""
    lines = Path(own_models.__file__).read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, start=1) if line.strip().startswith(statement))
    return f"{own_models.__file__}, line {number}"


DIES_AT_ONCE = {"is_killed", "leaves", "crashes", "aborts"}
TIME = ("trainer.max_seconds=3", "trainer.grace_seconds=2")


@pytest.mark.slow
def test_the_sweep_goes_on_after_each_kind_of_failure(train):
    ended = train("-m", *OWN, *TIME, f"+model.what={','.join(FAILURES)}")
    assert ended.code == 1
    runs = all_runs()
    assert [run.record.config["model"]["what"] for run in runs] == list(FAILURES)
    for run, (status, error) in zip(runs, FAILURES.values(), strict=True):
        record = run.record
        assert record.status == status
        assert record.error is None if error is None else error in record.error
        assert record.ended_at is not None
        steps = [row["step"] for row in run.history]
        if record.config["model"]["what"] in DIES_AT_ONCE:
            assert steps in ([1], [1, 2])  # rows of the last 50 ms are gone
        else:
            assert steps == list(range(1, 6 if status == "completed" else 3))
        assert (run.directory / "error.txt").exists() == (status == "failed")
        if status == "failed":
            assert error in ended.err
            assert str(run.directory / "error.txt") in ended.err
    assert 'raise RuntimeError("my model broke")' in (runs[0].directory / "error.txt").read_text(), "the traceback"
    assert "killed by SIGKILL" in (only_sweep() / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("raises", f"RuntimeError: my model broke ({place_of_statement('raise RuntimeError')})"),
        ("exits", f"ended by sys.exit(5) ({place_of_statement('sys.exit')})"),
        ("leaves_well", "ended with exit code 0 before it returned"),
        ("crashes", "killed by SIGSEGV"),
    ],
)
def test_a_single_run_that_fails_says_how_and_keeps_its_error(start, what, told):
    ended = start(*OWN, f"+model.what={what}").finish()
    run, kept = only_run(), (only_run().directory / "error.txt").resolve()
    assert (ended.code, ended.out, run.record.status, run.record.error) == (1, "", "failed", told)
    assert ended.said == [f"error: {run.directory.name} failed: {told}; its error in full: {kept}"]
    assert what != "raises" or [row["step"] for row in run.history] == [1, 2]
    assert what != "raises" or 'raise RuntimeError("my model broke")' in kept.read_text()


def test_hydra_full_error_shows_the_traceback_as_well(train, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    ended = train(*OWN, "+model.what=raises")
    assert ended.code == 1
    assert 'raise RuntimeError("my model broke")' in ended.err
    assert ended.err.splitlines()[-1].startswith("error: ")
    refused = train(*OWN, "model._target_=own_models.Unwilling")
    assert 'raise KeyError("no such layer")' in refused.err
    assert refused.code == 2


def test_a_failure_tells_no_secret(train):
    keyed = ("model._target_=own_models.Keyed", "+model.api_key=not-to-be-told-1234", "+model.breaks=true")
    ended = train(*OWN, *keyed)
    assert ended.code == 1
    run = only_run()
    assert "the service does not take ***" in run.record.error
    assert "the service does not take ***" in (run.directory / "error.txt").read_text()
    assert "not-to-be-told-1234" not in ended.err


@pytest.mark.slow
def test_a_thread_that_is_left_does_not_keep_a_single_run(start):
    assert start(*OWN, "+model.what=leaves_a_thread").process.wait(2 * PATIENCE_S) == 0


def test_a_precision_without_a_kernel_is_unsupported(train):
    ended = train(*OWN, "+model.what=has_no_half_kernel", "precision=amp_fp16")
    record = only_run().record
    assert (record.status, ended.code) == ("unsupported", 0)
    told = "cannot compute this model in float16: linalg.inv: Low precision dtypes not supported. Got Half"
    assert record.error.endswith(told)


def test_wandb_is_told_of_the_failure(train):
    train("-m", *OWN[:-1], "tracking.mode=offline", "+model.what=raises")
    run = only_run()
    tracked = read_wandb_file(run.directory / run.record.wandb.directory)
    assert tracked.exit_code == 1
    assert tracked.summary["status"] == "failed"
    assert tracked.summary["error"].startswith("RuntimeError: my model broke (")
    assert tracked.history == run.history
