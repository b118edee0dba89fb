"""The calls of the campaign: what was found is there whatever ends one, and each has its time."""

import signal
import socket
import time

import psutil
import pytest
import run
from campaign.call import Call
from tiny_campaign import of_group

from ampsweep.commands.sweep import points_of
from ampsweep.config.compose import compose_one, compose_points

CALLS = [*run.PLAN["calls"]]


@pytest.mark.slow
def test_a_call_measures_all_of_its_commands(finished, tmp_path):
    assert finished.code == 0, finished.err
    made = finished.call(tmp_path)
    assert list(made.entries) == [one.text for one in run.planned(1, tiny=True, overrides=["device=cpu"])]
    assert {entry.status for entry in made.entries.values()} == {"done"}
    assert {(record["config"]["name"], record["arm"]) for record in finished.records} == {
        *(("smoke", arm) for arm in ("fp32", "amp_fp16", "amp_bf16", "master_fp16", "fp8_rowwise")),
        *(("recipe", arm) for arm in ("fp32", "tf32", "amp_fp16", "amp_bf16", "pure_bf16")),
    }


@pytest.mark.slow
def test_what_is_packed_is_small_and_names_no_machine(finished):
    assert finished.packed.stat().st_size < 100_000
    assert {name.rpartition("/")[2] for name in finished.files} == {"call.json", "run.json", "history.jsonl"}
    whole = "".join(finished.files.values())
    assert str(finished.directory) not in whole
    assert f'"{socket.gethostname()}"' not in whole


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_call_that_is_cut_leaves_the_runs_that_ended(stopped, tmp_path, number):
    """Also those of the command that it was cut in, which ends within its time."""
    cut = stopped(tmp_path / "out", number)
    first, *others = cut.call(tmp_path / "unpacked").entries.values()
    assert (first.status, first.reason) == ("cut off", "the call was cut off meanwhile")
    assert {entry.status for entry in others} == {"not begun"}
    assert any(record["status"] == "completed" for record in cut.records)
    left = of_group(cut.directory)
    assert bool(left) == (number == signal.SIGKILL)
    assert any(process.name() == "timeout" for process in left) == (number == signal.SIGKILL)
    for process in left:
        if process.name() == "timeout":
            process.send_signal(signal.SIGINT)
    assert not psutil.wait_procs(left, timeout=30)[1]


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("import time; print(1, flush=True); time.sleep(99)", "cut off", "its 4 s were spent"),
        (
            "import signal, time; signal.signal(2, signal.SIG_IGN); print(1, flush=True); time.sleep(99)",
            *("cut off", "its 4 s were spent"),
        ),
        ("import sys; print(1); sys.exit('not here')", "failed", "exit code 1: not here"),
        ("print(1)", "done", None),
    ],
)
def test_a_command_that_fails_or_is_cut_off_ends_no_other(tmp_path, monkeypatch, code, status, reason):
    monkeypatch.setattr(run, "_LEAST_S", 1.0)
    monkeypatch.setattr(run, "GRACE_S", 1.0)
    command = run.Command(f'python -c "{code}"', 4.0)
    call = run.Call(number=1, tiny=True, began_at="", entries={command.text: run.Entry()})
    run.Caller(tmp_path, call, ends_s=time.monotonic() + 300).run([command])
    (entry,) = Call.unpack(tmp_path / call.file, tmp_path / "unpacked").entries.values()
    assert (entry.status, entry.reason, entry.printed) == (status, reason, "1\n")


@pytest.mark.slow
def test_the_call_of_a_directory_is_not_mixed_with_another(finished, call):
    other = call(finished.directory)
    assert other.code == 2
    assert "holds the runs of another call; choose another --out" in other.err


@pytest.mark.parametrize("number", CALLS)
def test_a_call_ends_within_ten_minutes(number):
    assert sum(command.limit_s for command in run.planned(number, tiny=False)) <= 500 < run.CALL_S < 600 - run.GRACE_S


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("number", CALLS)
def test_each_command_composes_and_clips_as_it_says(number, tiny):
    for command in run.planned(number, tiny=tiny, overrides=["device=cpu"]):
        words = [word for word in command.words if "=" in word and not word.startswith("-")]
        if command.experiment == "recipe":
            configs = [compose_one(point) for point in points_of(run.HERE / "recipe.yaml", words)]
        elif command.experiment is not None:
            words = [word for word in words if not word.startswith("doctor.")]
            configs = [point.config for point in compose_points(words, multirun=True).points]
        else:
            assert all((run.ROOT / word).exists() for word in command.words if word.startswith("tests/"))
            continue
        assert {config.name for config in configs} == {command.experiment}
        assert "trainer.max_grad_norm=" in command.text or command.experiment == "recipe" or "doctor" in command.words
