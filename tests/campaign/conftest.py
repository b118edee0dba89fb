"""A tiny first call of the campaign, run by its own command."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from campaign.results import Results
from tiny_campaign import PATIENCE_S, Made, command


@pytest.fixture(scope="session")
def machine() -> Iterator[dict[str, str]]:
    """The environment of a user's machine: one thread, device locks of its own, nothing of W&B."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "AMPSWEEP_"))}
    with tempfile.TemporaryDirectory() as temporary:  # a short path: sockets of processes lie in it
        yield own | {"OMP_NUM_THREADS": "1", "TMPDIR": temporary}


@pytest.fixture(scope="session")
def call(machine: dict[str, str]) -> Callable[..., Made]:
    """The command of a call, to its end."""

    def call(directory: Path, *arguments: str) -> Made:
        ended = subprocess.run(
            command(directory, *arguments), env=machine, capture_output=True, text=True, check=False, timeout=300
        )
        return Made(directory, ended.returncode, ended.stdout, ended.stderr)

    return call


@pytest.fixture
def stopped(machine: dict[str, str]) -> Callable[..., Made]:
    """Starts a call and sends it a signal as soon as it has packed something."""

    def stopped(directory: Path, number: signal.Signals) -> Made:
        process = subprocess.Popen(
            command(directory), env=machine, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        made, deadline = Made(directory, 0), time.monotonic() + PATIENCE_S
        while not made.packed.is_file():
            assert time.monotonic() < deadline, "waited in vain"
            assert process.poll() is None, "the call ended by itself"
            time.sleep(0.02)
        process.send_signal(number)
        return Made(directory, process.wait(PATIENCE_S))

    return stopped


@pytest.fixture(scope="session")
def finished(call: Callable[..., Made], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A whole call."""
    return call(tmp_path_factory.mktemp("campaign") / "out")


@pytest.fixture(scope="session")
def results(finished: Made, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What it found."""
    return Results.load([finished.packed], tmp_path_factory.mktemp("unpacked"))
