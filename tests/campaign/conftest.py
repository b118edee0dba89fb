"""A campaign at its tiny scale on the CPU, run by its own command; killed once in the middle, and gone on with."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_campaign import PATIENCE_S, Campaign, Left, command, entries_of, left_in


@pytest.fixture(scope="session")
def machine() -> Iterator[dict[str, str]]:
    """The environment of a user's machine: one thread, device locks of its own, nothing of W&B."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "AMPSWEEP_"))}
    with tempfile.TemporaryDirectory() as temporary:  # a short path: sockets of processes lie in it
        yield own | {"OMP_NUM_THREADS": "1", "TMPDIR": temporary}


@pytest.fixture(scope="session")
def call(machine: dict[str, str]) -> Callable[..., Campaign]:
    """The campaign's command, to its end."""

    def call(directory: Path, *arguments: str) -> Campaign:
        ended = subprocess.run(
            command(directory, *arguments), env=machine, capture_output=True, text=True, check=False, timeout=300
        )
        return Campaign(directory, ended.returncode, ended.stdout, ended.stderr)

    return call


@pytest.fixture(scope="session")
def stopped(machine: dict[str, str]) -> Callable[..., int]:
    """Starts a campaign over the recipe, and sends it a signal at its block of that number; returns its exit code."""

    def stopped(directory: Path, block: int, number: signal.Signals) -> int:
        process = subprocess.Popen(
            command(directory, "--only", "recipe"), env=machine, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + PATIENCE_S
        while not (len(entries_of(directory)) == block and (directory / "running").is_file()):
            assert time.monotonic() < deadline, f"waited in vain for block {block}"
            assert process.poll() is None, "the campaign ended by itself"
            time.sleep(0.02)
        process.send_signal(number)
        return process.wait(PATIENCE_S)

    return stopped


@pytest.fixture(scope="session")
def killed(stopped: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A campaign that was killed without a word while it was at its second block."""
    directory = tmp_path_factory.mktemp("campaign") / "out"
    stopped(directory, 2, signal.SIGKILL)
    return left_in(directory)


@pytest.fixture(scope="session")
def interrupted(killed: Left, stopped: Callable[..., int]) -> Left:
    """The same, called again and asked to end while it was at its third block."""
    assert stopped(killed.directory, 3, signal.SIGTERM) == 1
    return left_in(killed.directory)


@pytest.fixture(scope="session")
def finished(interrupted: Left, call: Callable[..., Campaign]) -> Campaign:
    """The same, called once more and left alone."""
    return call(interrupted.directory, "--only", "recipe")
