"""A campaign at its tiny scale on the CPU, run by its own command; killed once in the middle, and gone on with."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_campaign import PATIENCE_S, Campaign, Killed, beginnings, command, entries_of


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
def killed(machine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """A campaign over the recipe that was killed without a word while it was at its second block."""
    directory = tmp_path_factory.mktemp("campaign") / "out"
    process = subprocess.Popen(
        command(directory, "--only", "recipe"), env=machine, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    running, deadline = directory / "running", time.monotonic() + PATIENCE_S
    while not (len(entries_of(directory)) == 2 and running.is_file()):
        assert time.monotonic() < deadline, "waited in vain for the second block"
        assert process.poll() is None, "the campaign ended by itself"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    packed = directory.with_name("packed_when_killed")
    shutil.copytree(directory / "packed", packed)
    return Killed(packed, beginnings(directory), int(running.read_text().split()[0]))


@pytest.fixture(scope="session")
def finished(killed: Killed, call: Callable[..., Campaign]) -> Campaign:
    """The same campaign, called again."""
    return call(killed.packed.with_name("out"), "--only", "recipe")
