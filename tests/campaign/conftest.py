"""A tiny campaign over the recipe, run by its own command: interrupted at first, then killed, and gone on with."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from campaign.results import Results
from tiny_campaign import PATIENCE_S, Campaign, beginnings, command, entries_of, left_in


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
        return left_in(directory, ended.returncode, ended.stdout, ended.stderr)

    return call


@pytest.fixture(scope="session")
def stopped(machine: dict[str, str]) -> Callable[..., Campaign]:
    """Starts the campaign over the recipe and sends it a signal as soon as `reached` says so."""

    def stopped(directory: Path, number: signal.Signals, reached: Callable[[], bool]) -> Campaign:
        process = subprocess.Popen(
            command(directory, "--only", "recipe"), env=machine, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + PATIENCE_S
        while not ((directory / "running").is_file() and reached()):
            assert time.monotonic() < deadline, "waited in vain"
            assert process.poll() is None, "the campaign ended by itself"
            time.sleep(0.02)
        process.send_signal(number)
        return left_in(directory, process.wait(PATIENCE_S))

    return stopped


@pytest.fixture(scope="session")
def interrupted(stopped: Callable[..., Campaign], tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """A campaign that was asked to end within its sweep, after the first run."""
    directory = tmp_path_factory.mktemp("campaign") / "out"
    return stopped(directory, signal.SIGTERM, lambda: len(beginnings(directory)) > 0)


@pytest.fixture(scope="session")
def began_before(interrupted: Campaign) -> dict[str, str]:
    """When the runs that it finished had begun."""
    return beginnings(interrupted.directory)


@pytest.fixture(scope="session")
def killed(interrupted: Campaign, began_before: dict[str, str], stopped: Callable[..., Campaign]) -> Campaign:
    """The same, called again and killed without a word at its loops by hand."""
    directory = interrupted.directory
    return stopped(directory, signal.SIGKILL, lambda: len(entries_of(directory)) == 2)


@pytest.fixture(scope="session")
def finished(killed: Campaign, call: Callable[..., Campaign]) -> Campaign:
    """The same, called once more and left alone."""
    return call(killed.directory, "--only", "recipe")


@pytest.fixture(scope="session")
def results(finished: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What it found."""
    return Results.load(finished.packed, tmp_path_factory.mktemp("unpacked"))
