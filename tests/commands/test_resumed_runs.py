"""Ctrl-C, SIGTERM and SIGKILL leave a true record and a checkpoint; `resume=` goes on as if nothing had happened."""

import math
import signal
import statistics
import sys
import time
from pathlib import Path

import psutil
import pytest
from command_line import MLP, all_runs, only_run, only_sweep, wait_until
from wandb_file import read_wandb_file

from ampsweep.config.compose import compose_one
from ampsweep.records.sections import Attempt
from ampsweep.run.directories import unfinished_run
from ampsweep.run.request import new_record

GATE, WAITING = Path("gate.open"), Path("gate.waiting")
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="signals between processes are a POSIX matter")
SAME_EACH_TIME = ("train/loss", "train/grad_norm", "train/lr", "val/loss", "val/accuracy")
SCALER = ("amp/scale", "amp/growth_tracker", "amp/skipped_steps", "amp/applied_steps")
SAVING = (*MLP, "trainer.log_every=1", "trainer.steps=4", "trainer.checkpoint_every=2")


@pytest.fixture
def gated(tmp_path):
    """A training with everything that has a state: dropout, momentum, a schedule, a scale that grows and overflows."""
    return (
        *("model=custom", "model._target_=own_models.Gated", "+model.at=10", f"+model.gate={tmp_path / GATE}"),
        *("data=digits", "precision=amp_fp16", "precision.init_scale=67108864", "precision.growth_interval=3"),
        *("scheduler=cosine", "scheduler.num_warmup_steps=4", "trainer.steps=24", "trainer.max_grad_norm=0.35"),
        *("trainer.eval_every=6", "trainer.log_every=1", "tracking=disabled"),
    )


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)])
def test_a_stopped_run_that_is_resumed_is_bitwise_the_whole_run(number, start, train, gated):
    is_killed = number == signal.SIGKILL
    command = (*gated, "trainer.checkpoint_every=4") if is_killed else gated
    training = start(*command)
    wait_until(WAITING.exists, "the tenth step")
    training.signal(number)
    if not is_killed:
        GATE.touch()
    ended = training.finish()
    assert not training.alive()
    stopped = only_run()
    assert stopped.record.status == "interrupted"
    if is_killed:
        assert [row["step"] for row in stopped.history] in ([*range(1, 9)], [*range(1, 10)])  # rows wait 50 ms
    else:
        assert (ended.code, stopped.record.error) == (1, "SIGTERM after step 10 of 24")

    GATE.touch()
    ended = train(*command, "resume=auto")
    assert train(*gated, "output_dir=reference").code == 0
    resumed, reference = only_run(), only_run("reference")
    assert f"resuming {resumed.directory.resolve()}" in ended.err
    assert (ended.code, resumed.record.status) == (0, "completed")
    assert [attempt.from_step for attempt in resumed.record.attempts] == [0, 8 if is_killed else 10]
    assert [row["step"] for row in resumed.history] == list(range(1, 25)), "each step once"
    for key in SAME_EACH_TIME + SCALER:
        assert resumed.column(key) == reference.column(key), key
        assert resumed.record.summary[key] == reference.record.summary[key]
    assert reference.record.summary["amp/skipped_steps"] > 0
    norms = [norm for norm in reference.column("train/grad_norm").values() if math.isfinite(norm)]
    clipped_pct = 100 * statistics.mean(norm > 0.35 for norm in norms)
    assert 0 < clipped_pct < 100
    assert {run.record.summary["train/clipped_pct"] for run in (resumed, reference)} == {clipped_pct}
    assert resumed.record.memory.peak == reference.record.memory.peak


def stopped():
    """A run that was stopped after its checkpoint at step 4, as its files say."""
    run = only_run()
    record = run.record
    record.status, record.attempts[-1].host = "interrupted", "another machine"
    record.write(run.directory)
    return run.directory.resolve()


def test_what_a_run_can_be_resumed_from(train):
    assert train(*SAVING).code == 0
    finished = only_run().directory
    ended = train(*SAVING, "resume=auto", "output_dir=fresh")
    assert "no unfinished run of this config; starting afresh" in ended.err

    ended = train(*SAVING, "trainer.steps=6", "output_dir=longer", f"resume={finished}")
    longer, memory = only_run("longer").record, only_run().record.memory
    assert (ended.code, ended.said, longer.attempts[0].notes) == (0, [], [])
    assert (longer.memory.peak, longer.memory.unattributed_bytes) == (memory.peak, memory.unattributed_bytes)

    ended = train(*SAVING, "output_dir=evaluated", f"resume={finished}")
    assert (ended.code, ended.said) == (0, ["the checkpoint is of step 4 of 4: nothing is left to train"])
    assert only_run("evaluated").record.summary["val/loss"] == only_run().record.summary["val/loss"]

    last = finished / "checkpoints/last.pt"
    last.write_bytes(last.read_bytes()[:-1000])
    for place, setting, said in (
        (finished / "checkpoints/previous.pt", "model.hidden_size=128", "is of another model"),
        (last, "seed=0", "cannot be read: it is damaged or no checkpoint\n"),
    ):
        refused = train(*SAVING, setting, f"resume={place}", "output_dir=refused")
        assert (refused.code, said in refused.err, Path("refused").exists()) == (2, True, False)


def test_a_run_killed_after_its_last_step_keeps_its_figures(train):
    command = (*SAVING, "precision=amp_fp16", "trainer.checkpoint_every=4")
    assert train(*command).code == 0
    before = only_run().record.summary
    stopped()
    assert train(*command, "resume=auto").code == 0
    record = only_run().record
    assert (record.status, len(record.attempts)) == ("completed", 2)
    for key in (*SAME_EACH_TIME, *SCALER):
        assert record.summary[key] == before[key], key
    assert "perf/step_ms" not in record.summary, "this process took no step"


def test_a_damaged_history_or_record_is_left_alone(train):
    assert train(*SAVING).code == 0
    directory = stopped()
    history, record = directory / "history.jsonl", directory / "run.json"
    changed = b"".join(history.read_bytes().splitlines(keepends=True)[:3])
    for file, content, code, said in (
        (history, changed, 2, f"whose history cannot be trusted: {history} has been changed since its run ended: "),
        (record, b'{"schema": 1,', 0, f"resume=auto: passed over, {record} is not JSON: "),
    ):
        file.write_bytes(content)
        ended = train(*SAVING, "resume=auto")
        assert (ended.code, said in ended.err, file.read_bytes()) == (code, True, content)


@pytest.mark.parametrize("by", ["auto", "into"])
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(by, train):
    command = SAVING if by == "auto" else ("-m", *SAVING)
    assert train(*command).code == 0
    last = stopped() / "checkpoints/last.pt"
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    ended, run = train(*command, "resume=auto" if by == "auto" else f"into={last.parents[2]}"), only_run()
    note = f"checkpoint {last} cannot be read: it is damaged or no checkpoint; going on from previous.pt, of step 2"
    attempt = run.record.attempts[-1]
    assert (ended.code, run.record.status, attempt.from_step, attempt.notes) == (0, "completed", 2, [note])
    assert attempt.checkpoint == str(last.with_name("previous.pt"))
    assert note in ended.err
    assert [row["step"] for row in run.history] == [1, 2, 3, 4]
    assert {path.name for path in last.parent.glob("*.pt*")} - {"final.pt"} == {
        *("last.pt", "previous.pt", "last.pt.damaged"),
    }


def test_of_several_unfinished_runs_the_newest_with_a_checkpoint_goes_on(tmp_path):
    config = compose_one((*SAVING, f"output_dir={tmp_path}"))
    runs = (("b", "interrupted", True), ("a", "failed", True), ("c", "interrupted", False), ("d", "completed", True))
    for minute, (name, status, is_saved) in enumerate(runs):
        directory, record = tmp_path / config.name / name, new_record(config, device="cpu")
        record.status, record.attempts = status, [Attempt(started_at=f"2026-01-01T00:0{minute}:00+00:00")]
        (directory / "checkpoints").mkdir(parents=True)
        record.write(directory)
        if is_saved:
            (directory / "checkpoints/last.pt").touch()
    assert unfinished_run(config, print) == tmp_path / config.name / "a"


SWEEP = (
    *("-m", "seed=0,1", "precision=fp32", "model=custom", "model._target_=own_models.Gated", "+model.at=6"),
    *("data=digits", "trainer.steps=10", "trainer.log_every=1", "tracking.mode=offline"),
)


@pytest.fixture
def waiting(start, tmp_path):
    """A sweep that stands still in step 6 of its first run until the gate is opened."""
    sweep = start(*SWEEP, f"+model.gate={tmp_path / GATE}")
    wait_until(WAITING.exists, "the sixth step")
    return sweep


@needs_signals
@pytest.mark.parametrize("reason", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.nightly)])
def test_an_interrupted_sweep_keeps_a_checkpoint_and_is_completed_by_into(reason, waiting, train, tmp_path):
    assert len(waiting.alive()) >= 4, "the sweep, its fork server, the run and wandb-core"
    waiting.ctrl_c() if reason == "SIGINT" else waiting.signal(signal.SIGTERM)
    time.sleep(0.5)  # meanwhile the sweep passes the signal on to its run
    GATE.touch()
    ended = waiting.finish()
    wait_until(lambda: not waiting.alive(), "every process has ended")
    assert (ended.code, "Traceback" in ended.err) == (1, False)

    run, directory = only_run(), only_sweep()
    steps = [row["step"] for row in run.history]
    assert (run.record.status, run.record.error) == ("interrupted", f"{reason} after step {len(steps)} of 10")
    assert steps == list(range(1, len(steps) + 1))
    assert (run.directory / "checkpoints/last.pt").is_file()
    assert "interrupted" in (directory / "comparison.md").read_text()
    last_words = f"interrupted; the same command with into={directory.resolve()} goes on with it"
    assert ended.said[-1] == last_words
    sent = read_wandb_file(run.directory / run.record.wandb.directory)
    assert (sent.history, sent.exit_code, sent.summary["status"]) == (run.history, 1, "interrupted")

    same = (*SWEEP[:-1], "tracking=disabled", f"+model.gate={tmp_path / GATE}", f"into={directory}")
    assert train(*same).code == 0
    assert [run.record.status for run in all_runs()] == ["completed"] * 2
    continued = all_runs()[0]
    assert (continued.directory, continued.record.error) == (run.directory, None)
    assert [attempt.from_step for attempt in continued.record.attempts] == [0, len(steps)]
    assert [row["step"] for row in continued.history] == list(range(1, 11))


def stop(*arguments):
    raise KeyboardInterrupt


def test_a_second_ctrl_c_leaves_the_command_that_goes_on(train, monkeypatch):
    assert train("-m", *MLP, "trainer.steps=4", "seed=0").code == 0
    monkeypatch.setattr("ampsweep.commands.hydra_job.run_in_own_process", stop)
    monkeypatch.setattr("ampsweep.commands.multirun.put_out", stop)
    ended = train("-m", *MLP, "trainer.steps=4", "seed=0,1", f"into={only_sweep()}")
    goes_on = f"interrupted; the same command with into={only_sweep().resolve()} goes on with it"
    assert (ended.code, ended.said[1:]) == (1, [goes_on, "interrupted"])


def test_a_sweep_stopped_before_its_first_run_leaves_nothing(train, monkeypatch):
    monkeypatch.setattr("ampsweep.commands.hydra_job.run_in_own_process", stop)
    ended = train("-m", *MLP, "seed=0,1")
    assert (ended.code, ended.said) == (1, ["interrupted; nothing was trained"])
    assert [path for path in Path("outputs").rglob("*") if path.parent.name != "outputs"] == []


@needs_signals
@pytest.mark.nightly
def test_the_run_of_a_killed_sweep_ends_with_a_checkpoint(waiting):
    waiting.signal(signal.SIGKILL)
    waiting.process.wait()
    assert psutil.pid_exists(int(WAITING.read_text())), "the run itself still waits"
    GATE.touch()
    wait_until(lambda: not waiting.alive(), "every process has ended")
    run = only_run()
    assert run.record.status == "interrupted"
    assert run.record.error.startswith("the parent process died after step ")
    assert (run.directory / "checkpoints/last.pt").is_file()
