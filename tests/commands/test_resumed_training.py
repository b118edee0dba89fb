"""A training that was stopped or killed goes on as if nothing had been."""

import json
import math
import signal
import sys
from pathlib import Path

import pytest
from command_line import MLP, only_run, wait_until

GATE, WAITING = Path("gate.open"), Path("gate.waiting")
SAME_EACH_TIME = ("train/loss", "train/grad_norm", "train/lr", "val/loss", "val/accuracy")
SCALER = ("amp/scale", "amp/growth_tracker", "amp/skipped_steps", "amp/applied_steps")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals between processes are a POSIX matter")


@pytest.fixture
def gated(tmp_path):
    """A training with everything that has a state: dropout, momentum, a schedule, a scale that grows and overflows."""
    return (
        "model=custom",
        "model._target_=own_models.Gated",
        "+model.at=10",
        f"+model.gate={tmp_path / GATE}",
        "data=digits",
        "precision=amp_fp16",
        "precision.init_scale=67108864",
        "precision.growth_interval=3",
        "scheduler=cosine",
        "scheduler.num_warmup_steps=4",
        "trainer.steps=24",
        "trainer.max_grad_norm=0.35",
        "trainer.eval_every=6",
        "trainer.log_every=1",
        "tracking=disabled",
    )


@pytest.fixture
def assert_as_if_uninterrupted(gated, train):
    """Resume the one run here, and compare it with the same that nothing interrupts."""

    def check(*arguments, from_step):
        GATE.touch()
        ended = train(*gated, *arguments, "resume=auto")
        assert ended.code == 0
        resumed = only_run()
        assert f"resuming {resumed.directory.resolve()}" in ended.err
        assert train(*gated, "output_dir=reference").code == 0
        reference = only_run("reference")

        assert resumed.record.status == "completed"
        assert [attempt.from_step for attempt in resumed.record.attempts] == [0, from_step]
        assert [row["step"] for row in resumed.history] == list(range(1, 25)), "each step once"
        for key in SAME_EACH_TIME + SCALER:
            assert resumed.column(key) == reference.column(key), key
            assert resumed.record.summary[key] == reference.record.summary[key]
        assert reference.record.summary["amp/skipped_steps"] > 0
        norms = [norm for norm in reference.column("train/grad_norm").values() if math.isfinite(norm)]
        above = sum(norm > 0.35 for norm in norms)
        assert 0 < above < len(norms), "it clips some"
        for run in (resumed, reference):
            assert run.record.summary["train/clipped_pct"] == 100 * above / len(norms)
        assert resumed.record.memory.peak == reference.record.memory.peak

    return check


@POSIX
@pytest.mark.slow
def test_a_stopped_run_resumed_is_bitwise_the_run_that_was_not(start, gated, assert_as_if_uninterrupted):
    training = start(*gated)
    wait_until(WAITING.exists, "the tenth step")
    training.signal(signal.SIGTERM)
    GATE.touch()
    ended = training.finish()
    assert ended.code == 1
    assert only_run().record.error == "SIGTERM after step 10 of 24"
    assert not training.alive()
    assert_as_if_uninterrupted(from_step=10)


@POSIX
@pytest.mark.slow
def test_a_killed_run_resumed_from_its_last_checkpoint_is_too(start, gated, assert_as_if_uninterrupted):
    training = start(*gated, "trainer.checkpoint_every=4")
    wait_until(WAITING.exists, "the tenth step")
    training.signal(signal.SIGKILL)
    training.finish()
    killed = only_run()
    assert killed.record.status == "interrupted"
    assert [row["step"] for row in killed.history] in (
        [*range(1, 9)],
        [*range(1, 10)],
    )  # rows wait 50 ms
    assert_as_if_uninterrupted("trainer.checkpoint_every=4", from_step=8)


def test_there_is_nothing_to_resume_after_a_run_that_ended(train):
    assert train(*MLP, "trainer.steps=4", "trainer.checkpoint_every=2").code == 0
    finished = only_run().directory
    ended = train(*MLP, "trainer.steps=4", "trainer.checkpoint_every=2", "resume=auto")
    assert ended.code == 0
    assert "no unfinished run of this config; starting afresh" in ended.err
    assert len(list(finished.parents[1].iterdir())) == 2


def test_with_amp_a_run_that_was_without_gets_a_fresh_scaler(train):
    assert train(*MLP, "trainer.steps=4", "trainer.checkpoint_every=4").code == 0
    before = only_run()
    arguments = ("trainer.steps=6", "precision=amp_fp16", "precision.init_scale=1024", "output_dir=after")
    ended = train(*MLP, *arguments, f"resume={before.directory}")
    assert ended.code == 0
    after = only_run("after")
    (attempt,) = after.record.attempts
    (note,) = attempt.notes
    assert "fresh" in note
    assert note in ended.err
    assert attempt.from_step == 4
    assert attempt.checkpoint == str(before.directory / "checkpoints/last.pt")
    (row,) = after.history
    assert (row["step"], row["amp/scale"], row["amp/applied_steps"]) == (6, 1024.0, 6)


def test_without_amp_the_saved_scaler_is_ignored(train):
    assert train(*MLP, "trainer.steps=4", "trainer.checkpoint_every=4", "precision=amp_fp16").code == 0
    checkpoint = only_run().directory / "checkpoints/last.pt"
    ended = train(*MLP, "trainer.steps=6", "output_dir=after", f"resume={checkpoint}")
    assert ended.code == 0
    after = only_run("after")
    (note,) = after.record.attempts[0].notes
    assert "ignored" in note
    assert note in ended.err
    assert not [key for key in after.record.summary if key.startswith("amp/")]


def test_a_checkpoint_of_the_same_mode_carries_over_in_silence(train):
    assert train(*MLP, "trainer.steps=4", "trainer.checkpoint_every=4").code == 0
    ended = train(*MLP, "trainer.steps=6", "output_dir=after", f"resume={only_run().directory}")
    assert (ended.code, ended.said) == (0, [])
    after = only_run("after").record
    assert after.attempts[0].notes == []
    assert after.memory.peak == only_run().record.memory.peak
    assert after.memory.unattributed_bytes == only_run().record.memory.unattributed_bytes


def test_a_run_resumed_at_its_end_is_only_evaluated(train):
    assert train(*MLP, "trainer.steps=4", "trainer.checkpoint_every=4").code == 0
    ended = train(*MLP, "trainer.steps=4", "output_dir=after", f"resume={only_run().directory}")
    assert ended.code == 0
    assert ended.said == ["the checkpoint is of step 4 of 4: nothing is left to train"]
    assert only_run("after").record.summary["val/loss"] == only_run().record.summary["val/loss"]


def test_a_run_killed_after_its_last_step_keeps_its_figures(train):
    command = (*MLP, "precision=amp_fp16", "trainer.steps=4", "trainer.checkpoint_every=4")
    assert train(*command).code == 0
    before = only_run().record.summary
    stopped()
    assert train(*command, "resume=auto").code == 0
    record = only_run().record
    assert record.status == "completed"
    assert len(record.attempts) == 2
    for key in (*SAME_EACH_TIME, *SCALER):
        assert record.summary[key] == before[key], key
    assert "perf/step_ms" not in record.summary, "this process took no step"


def stopped(**environment):
    """A run that was stopped after its checkpoint at step 4, as its files say."""
    run = only_run()
    content = json.loads((run.directory / "run.json").read_text())
    del content["digest"]  # as it is of a version that wrote none
    content["status"] = "interrupted"
    content["environment"] |= environment
    content["attempts"][-1]["host"] = "another machine"
    (run.directory / "run.json").write_text(json.dumps(content))
    return run.directory


def test_a_run_with_a_damaged_history_is_not_resumed(train):
    command = (*MLP, "trainer.log_every=1", "trainer.steps=4", "trainer.checkpoint_every=2")
    assert train(*command).code == 0
    directory = stopped()
    history = directory / "history.jsonl"
    lines = history.read_bytes().splitlines(keepends=True)
    for content, why in (
        (lines[:3], "has been changed since its run ended: it does not match its digest"),
        ([lines[0], b"\x00\xff\n", *lines[2:]], "is damaged: line 2 is not JSON"),
    ):
        history.write_bytes(b"".join(content))
        ended = train(*command, "resume=auto")
        assert ended.code == 2
        said = f"a run cannot be resumed whose history cannot be trusted: {history.resolve()} {why}; resume="
        assert said in ended.err
        assert history.read_bytes() == b"".join(content)


def damaged_checkpoint(directory):
    last = directory / "checkpoints/last.pt"
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2])
    return last


def assert_went_on_from_the_one_before(run, last, err):
    note = f"checkpoint {last} cannot be read: it is damaged or no checkpoint; going on from previous.pt, of step 2"
    attempt = run.record.attempts[-1]
    assert (run.record.status, attempt.from_step, attempt.notes) == ("completed", 2, [note])
    assert attempt.checkpoint == str(last.with_name("previous.pt"))
    assert note in err
    assert [row["step"] for row in run.history] == [1, 2, 3, 4]
    assert {path.name for path in last.parent.iterdir()} == {"last.pt", "previous.pt", "last.pt.damaged"}


def test_auto_goes_on_from_the_checkpoint_before_a_damaged_one(train):
    command = (*MLP, "trainer.log_every=1", "trainer.steps=4", "trainer.checkpoint_every=2")
    assert train(*command).code == 0
    last = damaged_checkpoint(stopped().resolve())
    ended = train(*command, "resume=auto")
    assert ended.code == 0
    assert_went_on_from_the_one_before(only_run(), last, ended.err)


@pytest.mark.slow
def test_into_goes_on_from_the_checkpoint_before_a_damaged_one(train):
    command = ("-m", *MLP, "trainer.log_every=1", "trainer.steps=4", "trainer.checkpoint_every=2")
    assert train(*command).code == 0
    last = damaged_checkpoint(stopped().resolve())
    ended = train(*command, f"into={last.parents[2]}")
    assert ended.code == 0
    assert_went_on_from_the_one_before(only_run(), last, ended.err)


def test_a_record_that_cannot_be_read_is_passed_over(train):
    command = (*MLP, "trainer.steps=4", "trainer.checkpoint_every=2")
    assert train(*command).code == 0
    directory = stopped()
    (directory / "run.json").write_text('{"schema": 1,')
    ended = train(*command, "resume=auto")
    assert ended.code == 0
    assert f"resume=auto: passed over, {directory.resolve() / 'run.json'} is not JSON: " in ended.err
    assert "starting afresh" in ended.err
    assert (directory / "run.json").read_text() == '{"schema": 1,'
