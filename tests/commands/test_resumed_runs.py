"""`resume=`: a training that was stopped or killed goes on as if nothing had happened."""

import json
import math
import signal
import sys
from pathlib import Path

import pytest
from command_line import MLP, only_run, wait_until
from identities import identity

from ampsweep.config.compose import compose_one
from ampsweep.config.identity import config_hash
from ampsweep.record import RunRecord
from ampsweep.record.sections import Attempt
from ampsweep.run.directories import unfinished_run

GATE, WAITING = Path("gate.open"), Path("gate.waiting")
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


@pytest.mark.skipif(sys.platform == "win32", reason="signals between processes are a POSIX matter")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)])
def test_a_stopped_run_that_is_resumed_is_bitwise_the_whole_run(number, start, train, gated):
    is_killed = number == signal.SIGKILL
    saving = ("trainer.checkpoint_every=4",) if is_killed else ()
    training = start(*gated, *saving)
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
    ended = train(*gated, *saving, "resume=auto")
    assert ended.code == 0
    resumed = only_run()
    assert f"resuming {resumed.directory.resolve()}" in ended.err
    assert train(*gated, "output_dir=reference").code == 0
    reference = only_run("reference")
    assert resumed.record.status == "completed"
    assert [attempt.from_step for attempt in resumed.record.attempts] == [0, 8 if is_killed else 10]
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


def stopped(**environment):
    """A run that was stopped after its checkpoint at step 4, as its files say."""
    run = only_run()
    content = json.loads((run.directory / "run.json").read_text())
    del content["digest"]  # as in records of versions that wrote none
    content["status"] = "interrupted"
    content["environment"] |= environment
    content["attempts"][-1]["host"] = "another machine"
    (run.directory / "run.json").write_text(json.dumps(content))
    return run.directory.resolve()


def test_what_a_run_can_be_resumed_from(train):
    assert train(*SAVING).code == 0
    finished = only_run().directory
    ended = train(*SAVING, "resume=auto", "output_dir=fresh")
    assert "no unfinished run of this config; starting afresh" in ended.err

    ended = train(*SAVING, "trainer.steps=6", "output_dir=longer", f"resume={finished}")
    longer = only_run("longer").record
    assert (ended.code, ended.said, longer.attempts[0].notes) == (0, [], [])
    assert longer.memory.peak == only_run().record.memory.peak
    assert longer.memory.unattributed_bytes == only_run().record.memory.unattributed_bytes

    ended = train(*SAVING, "output_dir=evaluated", f"resume={finished}")
    assert (ended.code, ended.said) == (0, ["the checkpoint is of step 4 of 4: nothing is left to train"])
    assert only_run("evaluated").record.summary["val/loss"] == only_run().record.summary["val/loss"]


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
    history = directory / "history.jsonl"
    lines = history.read_bytes().splitlines(keepends=True)
    for content, why in (
        (lines[:3], "has been changed since its run ended: it does not match its digest"),
        ([lines[0], b"\x00\xff\n", *lines[2:]], "is damaged: line 2 is not JSON"),
    ):
        history.write_bytes(b"".join(content))
        ended = train(*SAVING, "resume=auto")
        assert ended.code == 2
        said = f"a run cannot be resumed whose history cannot be trusted: {history} {why}; resume="
        assert said in ended.err
        assert history.read_bytes() == b"".join(content)
    (directory / "run.json").write_text('{"schema": 1,')
    ended = train(*SAVING, "resume=auto")
    assert ended.code == 0
    assert f"resume=auto: passed over, {directory / 'run.json'} is not JSON: " in ended.err
    assert "starting afresh" in ended.err
    assert (directory / "run.json").read_text() == '{"schema": 1,'


@pytest.mark.parametrize("by", ["auto", "into"])
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(by, train):
    command = SAVING if by == "auto" else ("-m", *SAVING)
    assert train(*command).code == 0
    last = stopped() / "checkpoints/last.pt"
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    ended = train(*command, "resume=auto" if by == "auto" else f"into={last.parents[2]}")
    assert ended.code == 0
    run = only_run()
    note = f"checkpoint {last} cannot be read: it is damaged or no checkpoint; going on from previous.pt, of step 2"
    attempt = run.record.attempts[-1]
    assert (run.record.status, attempt.from_step, attempt.notes) == ("completed", 2, [note])
    assert attempt.checkpoint == str(last.with_name("previous.pt"))
    assert note in ended.err
    assert [row["step"] for row in run.history] == [1, 2, 3, 4]
    assert {path.name for path in last.parent.iterdir()} == {"last.pt", "previous.pt", "last.pt.damaged"}


def test_of_several_unfinished_runs_the_newest_with_a_checkpoint_goes_on(tmp_path):
    config = compose_one((*SAVING, f"output_dir={tmp_path}"))
    for name, minute, status, is_saved in (
        ("b", 1, "interrupted", True),
        ("a", 3, "failed", True),
        ("c", 4, "interrupted", False),
        ("d", 5, "completed", True),
    ):
        directory = tmp_path / config.name / name
        (directory / "checkpoints").mkdir(parents=True)
        record = RunRecord(
            run_id=name, arm="fp32", pair_key="p", config_hash=config_hash(config), identity=identity(), config={}
        )
        record.status, record.attempts = status, [Attempt(started_at=f"2026-01-01T00:0{minute}:00+00:00")]
        record.write(directory)
        if is_saved:
            (directory / "checkpoints/last.pt").touch()
    assert unfinished_run(config, print) == tmp_path / config.name / "a"
