"""A user's machine: an empty directory to work in, an empty home, nobody logged in to W&B, device locks of its own."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from command_line import Finished, Started, Swept
from users_machine import users_machine

from ampsweep.commands.main import main


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in an empty directory; returns the home, which is another one."""
    home = tmp_path_factory.mktemp("home")
    with users_machine(tmp_path, home, temporary):
        yield home


@pytest.fixture
def ampsweep(capfd: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """`ampsweep ARGUMENTS` in this process."""

    def ampsweep(*arguments: object) -> Finished:
        capfd.readouterr()
        code = main([*map(str, arguments)])
        return Finished(code, *capfd.readouterr())

    return ampsweep


@pytest.fixture
def train(ampsweep: Callable[..., Finished]) -> Callable[..., Finished]:
    """`python train.py ARGUMENTS` in this process (a sweep's trainings have their own all the same)."""
    return partial(ampsweep, "train")


@pytest.fixture
def swept(recorded: Callable[[str], Swept]) -> Swept:
    """Two seeds by three arms, one of which a CPU cannot do, to be read only."""
    return recorded("arms")


@pytest.fixture
def copied(swept: Swept, tmp_path: Path) -> Swept:
    """The same, to be changed."""
    directory = tmp_path / "outputs/train" / swept.directory.name
    shutil.copytree(swept.directory, directory)
    return replace(swept, directory=directory)


@pytest.fixture
def start(repository: Path) -> Iterator[Callable[..., Started]]:
    """`python train.py ARGUMENTS` as a process of its own session, as from a shell; what is left of it is killed."""
    started: list[Started] = []

    def start(*arguments: str, **environment: str) -> Started:
        mark = uuid.uuid4().hex
        path = os.pathsep.join([str(repository / "tests"), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(repository / "train.py"), *arguments],
            env={**os.environ, "PYTHONPATH": path, **environment, "AMPSWEEP_TEST": mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(Started(process, mark))
        return started[-1]

    yield start
    for command in started:
        for pid in command.alive():
            psutil.Process(pid).send_signal(signal.SIGKILL)
        command.process.communicate()
