"""The calls of the campaign: what was found is there whatever ends one, and each has its time."""

import signal
import socket

import psutil
import pytest
import run
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


@pytest.mark.slow
def test_a_command_that_takes_too_long_or_fails_ends_nothing_and_says_why(finished, tmp_path, monkeypatch):
    hand = "python sweeps/results/by_hand.py sweeps/results/recipe.yaml model=gpt_small device=cpu seed=0"
    commands = [
        run.Command("python -c 'import time; print(1, flush=True); time.sleep(60)'", 5.0),
        run.Command(hand, 200.0),
    ]
    call = finished.call(tmp_path / "unpacked")
    call.entries = {command.text: run.Entry() for command in commands}
    monkeypatch.setattr(run, "_LEAST_S", 1.0)
    run.Caller(tmp_path, call, ends_s=run.time.monotonic() + 300).run(commands)
    slow, wrong = call.entries.values()
    assert (slow.status, slow.reason, slow.printed) == ("cut off", "its 5 s were spent", "1\n")
    assert wrong.status == "failed"
    assert wrong.reason.startswith("exit code 1: pure_bf16, seed 0: ")


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
