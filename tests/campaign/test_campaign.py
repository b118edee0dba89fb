"""The calls of the campaign: whatever ends one, its results so far are packed; and the page that is made of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

import psutil
import pytest
import run
from campaign.call import Call
from page import page

from ampsweep.config.compose import compose_one, compose_points
from ampsweep.config.sweep_file import read_sweep


def command(directory, number=4):
    return [sys.executable, "-W", "error", run.__file__, str(number), "device=cpu", "--tiny", "--out", str(directory)]


@pytest.fixture(scope="module")
def environment():
    """A user's machine: one thread, device locks of its own, nothing of W&B."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "AMPSWEEP_"))}
    with tempfile.TemporaryDirectory() as temporary:  # a short path: sockets of processes lie in it
        yield own | {"OMP_NUM_THREADS": "1", "TMPDIR": temporary}


@pytest.fixture(scope="module")
def packed(environment, tmp_path_factory):
    """The packed results of a whole call."""
    directory = tmp_path_factory.mktemp("campaign") / "out"
    ended = subprocess.run(command(directory), env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return directory / "call4.tar.xz"


def files(packed):
    with tarfile.open(packed) as archive:
        return {entry.name: archive.extractfile(entry).read().decode() for entry in archive if entry.isfile()}


@pytest.mark.nightly
def test_a_call_packs_all_of_its_commands_and_names_no_machine(packed, tmp_path):
    entries = Call.unpack(packed, tmp_path).entries
    assert list(entries) == [planned.text for planned in run.planned(4, tiny=True, overrides=["device=cpu"])]
    assert {entry.status for entry in entries.values()} == {"done"}
    found = files(packed)
    records = [json.loads(text) for name, text in found.items() if name.endswith("run.json")]
    assert {(record["config"]["name"], record["arm"]) for record in records} == {
        ("recipe", arm) for arm in ("fp32", "tf32", "amp_fp16", "amp_bf16", "pure_bf16")
    }
    assert packed.stat().st_size < 100_000
    assert {name.rpartition("/")[2] for name in found} == {"call.json", "run.json", "history.jsonl"}
    assert str(packed.parent) not in "".join(found.values())
    assert f'"{socket.gethostname()}"' not in "".join(found.values())


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_call_that_is_cut_keeps_the_runs_that_ended(environment, tmp_path, number):
    """Also those of the command that it was cut in, which ends within its time."""
    packed, deadline = tmp_path / "out/call5.tar.xz", time.monotonic() + 120
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command(packed.parent, number=5), env=environment, **silent)
    while not packed.is_file():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    process.send_signal(number)
    try:
        process.wait(60)
    finally:
        process.kill()
    first, *others = Call.unpack(packed, tmp_path / "unpacked").entries.values()
    assert (first.status, first.reason) == ("cut off", "the call was cut off meanwhile")
    assert {entry.status for entry in others} == {"not begun"}
    records = [json.loads(text) for name, text in files(packed).items() if name.endswith("run.json")]
    assert any(record["status"] == "completed" for record in records)
    named = [found for found in psutil.process_iter(["cmdline"]) if found.info["cmdline"]]
    left = [found for found in named if any(str(packed.parent) in word for word in found.info["cmdline"])]
    assert bool(left) == (number == signal.SIGKILL)
    for found in left:
        if found.name() == "timeout":
            found.send_signal(signal.SIGINT)
    assert not psutil.wait_procs(left, timeout=30)[1]


def test_a_command_that_fails_or_is_cut_off_ends_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_LEAST_S", 0.5)
    monkeypatch.setattr(run, "GRACE_S", 0.5)
    ignoring = "import signal, time; signal.signal(2, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
    expected = {
        f'python -c "{ignoring}"': ("cut off", "its 2 s were spent"),
        "python -c \"import sys; print(1); sys.exit('not here')\"": ("failed", "exit code 1: not here"),
        'python -c "print(1)"': ("done", None),
    }
    call = run.Call(number=1, tiny=True, began_at="", entries={text: run.Entry() for text in expected})
    caller = run.Caller(tmp_path, call, ends_s=time.monotonic() + 300)
    caller.run([run.Command(text, 2.0) for text in expected])
    found = Call.unpack(tmp_path / call.file, tmp_path / "unpacked").entries
    assert {text: (entry.status, entry.reason) for text, entry in found.items()} == expected
    assert {entry.printed for entry in found.values()} == {"1\n"}


@pytest.mark.parametrize("numbers", [[1, 4, 6], pytest.param([2, 3, 5, 7, 8], marks=pytest.mark.nightly)], ids=str)
def test_a_call_ends_within_ten_minutes_and_composes_and_clips_as_it_says(numbers):
    for number in numbers:
        limits = [planned.limit_s for planned in run.planned(number, tiny=False)]
        assert sum(limits) <= 500 < run.CALL_S < 600 - run.GRACE_S
        for planned in run.planned(number, tiny=True, overrides=["device=cpu"]):
            words = [word for word in planned.words if "=" in word and not word.startswith(("-", "doctor."))]
            if planned.experiment in ("recipe", "nanogpt"):
                sweep = read_sweep(run.HERE / f"{planned.experiment}.yaml")
                configs = [compose_one(point) for point in sweep.overrides(words)]
            elif planned.experiment is not None:
                configs = [point.config for point in compose_points(words, multirun=True).points]
            else:
                assert all((run.ROOT / word).exists() for word in planned.words if word.startswith("tests/"))
                continue
            assert {config.name for config in configs} == {planned.experiment}
            clips = "trainer.max_grad_norm=" in planned.text
            assert clips or planned.experiment in ("recipe", "nanogpt") or "doctor" in planned.words


@pytest.mark.nightly
def test_the_page_is_made_from_the_packed_files_alone(packed, tmp_path):
    def make(*arguments):
        words = [sys.executable, "-W", "error", page.__code__.co_filename, *arguments]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    ended = make(packed, "--to", tmp_path / "page")
    assert (ended.returncode, ended.stderr) == (0, "")
    text = (tmp_path / "page/README.md").read_text()
    assert "A rehearsal with tiny sizes" in text
    _, not_measured = text.split("\n## Not measured\n")
    assert "name=gpt_small" in not_measured
    assert "call 2 was not made" in not_measured
    assert "share of bound" not in text, "nobody knows this device's peak"
    assert (tmp_path / "page/call4.tar.xz").read_bytes() == packed.read_bytes()
    assert "Where the memory goes" in (tmp_path / "page/recipe.md").read_text()
    for given, said in (((packed, packed), "two files are of the same call"), ((tmp_path / "no",), "[Errno 2] No")):
        ended = make(*given)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert ended.stderr.startswith(f"error: {said}")
