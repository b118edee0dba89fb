"""A user's machine: an empty directory to work in, an empty home, nobody logged in to W&B, device locks of its own."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from command_line import MLP, Finished, Started, Swept, only_sweep
from users_machine import users_machine
from wandb_server import WandbServer

from ampsweep.commands.train import main


@pytest.fixture(scope="session")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory for temporary files, one for all tests: the fork server that they share keeps it."""
    return tmp_path_factory.mktemp("tmp")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in an empty directory; returns the home, which is another one."""
    home = tmp_path_factory.mktemp("home")
    with users_machine(tmp_path, home, temporary):
        yield home


@pytest.fixture
def train(capfd: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """`python train.py ARGUMENTS` in this process (a sweep's trainings have their own all the same)."""

    def train(*arguments: str) -> Finished:
        capfd.readouterr()
        code = main(arguments)
        return Finished(code, *capfd.readouterr())

    return train


@pytest.fixture(scope="session")
def swept(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """A sweep that is finished, for all who only read it: two seeds by three arms, one of which a CPU cannot do."""
    directory, out, err = tmp_path_factory.mktemp("swept"), io.StringIO(), io.StringIO()
    arguments = (*MLP, "trainer.steps=6", "device=cpu", "seed=0,1", "precision=fp32,amp_bf16,tf32")
    with (
        users_machine(directory, tmp_path_factory.mktemp("home"), temporary),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(["-m", *arguments])
        return Swept(arguments, only_sweep(directory), Finished(code, out.getvalue(), err.getvalue()))


@pytest.fixture(scope="session")
def swept_online(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WandbServer, Path]]:
    """A W&B server and the directory of a sweep that it has, for all who only read them: tf32 is not trained."""
    directory, home = tmp_path_factory.mktemp("online"), tmp_path_factory.mktemp("home")
    tracking = ("tracking.mode=online", "tracking.project=mine")
    arguments = ("model=mlp_small", "trainer.steps=6", "trainer.log_every=2", "device=cpu", *tracking)
    with WandbServer() as server:
        with users_machine(directory, home, temporary), pytest.MonkeyPatch.context() as patch:
            for name, value in server.environment.items():
                patch.setenv(name, value)
            assert main(["-m", *arguments, "precision=fp32,amp_bf16,tf32"]) == 0
            sweep = only_sweep(directory)
        yield server, sweep


@pytest.fixture
def copied(swept: Swept, tmp_path: Path) -> Swept:
    """The same for those who change it."""
    directory = tmp_path / "outputs/train" / swept.directory.name
    shutil.copytree(swept.directory, directory)
    return replace(swept, directory=directory)


@pytest.fixture
def start(repository: Path, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """`python train.py ARGUMENTS` as a process of its own session, as from a shell; what is left of it is killed."""
    started: list[Started] = []

    def start(*arguments: str, **environment: str) -> Started:
        mark = uuid.uuid4().hex
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(repository / "train.py"), *arguments],
            env={
                **os.environ,
                "PYTHONPATH": path,
                **environment,
                "AMPSWEEP_TEST": mark,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(Started(process, mark))
        return started[-1]

    yield start
    for one in started:
        for pid in one.alive():
            psutil.Process(pid).send_signal(signal.SIGKILL)
        one.process.communicate()
