import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from wandb_server import WandbServer

from ampsweep.observe.host_memory import measure_host_peak
from ampsweep.training.components.instantiate import locate

# One thread here and in every process the tests start: they share two cores, and a fork server that was started
# with another number would decline its children's environment.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)
# A shell that runs the tests in the background has them ignore Ctrl-C, and every process they start with them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Of two processes that run tests, neither waits for the other's trainings: each has locks of devices of its own.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # where pytest keeps tests' own directories
_TEMPORARY = tempfile.mkdtemp(prefix="tests-")
os.environ["TMPDIR"] = tempfile.tempdir = _TEMPORARY
util.Finalize(None, shutil.rmtree, args=(_TEMPORARY, True), exitpriority=-200)  # after multiprocessing's own folders
# The profiler's library reads how much it may say when it is first used, which is here as it is in a training.
with measure_host_peak():
    pass

pytest_plugins = ["time_limit"]


LONG = ("slurm", "docs", "sweeps", "campaign", "commands", "parallel", "predict")
"""Folders whose files take longest: they come first, so that no process is left alone with one at the end."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # by the number of tests, which tells nothing of their time


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ranks = {folder: number for number, folder in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.relative_to(here).parts[0], len(LONG)))


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    """The dtypes of results in the models of `autocast_users`, imported as the suite imports a user's module."""
    locate("model", {"_target_": "autocast_users.HERE.Region"})
    found: list[Any] = sys.modules["autocast_users"].SEEN
    found.clear()
    yield found
    found.clear()


@pytest.fixture
def foreign_load() -> Iterator[None]:
    """A busy loop in a process whose parent has gone: nothing ties it to what is tested."""
    if os.name == "nt":
        pytest.skip("needs a shell that leaves processes behind")
    command = f'"{sys.executable}" -c "while True: pass" >/dev/null 2>&1 & echo $!'
    started = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=True)
    loop = psutil.Process(int(started.stdout))
    while loop.cpu_times().user < 0.1:
        time.sleep(0.01)
    yield
    loop.kill()


@pytest.fixture
def wandb_server() -> Iterator[WandbServer]:
    """A W&B server that knows nothing yet; its `environment` leads a client to it."""
    with WandbServer() as server:
        yield server


@pytest.fixture
def online(wandb_server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> WandbServer:
    """Such a server, which this machine is logged in to."""
    for name, value in wandb_server.environment.items():
        monkeypatch.setenv(name, value)
    return wandb_server
