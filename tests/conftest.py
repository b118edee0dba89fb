import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
# A shell that runs the tests in the background makes them, and every process that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Each process that runs tests has its own device locks, so that none waits for the trainings of another.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # where pytest keeps tests' own directories
_TEMPORARY = tempfile.mkdtemp(prefix="tests-")
os.environ["TMPDIR"] = tempfile.tempdir = _TEMPORARY
os.environ["XDG_CACHE_HOME"] = f"{_TEMPORARY}/cache"  # no calibration of this machine changes a prediction
Path(os.environ["XDG_CACHE_HOME"]).mkdir()  # torch, which keeps CUDA kernels there, warns where it is missing
util.Finalize(None, shutil.rmtree, args=(_TEMPORARY, True), exitpriority=-200)  # after multiprocessing's own folders
# The profiler's library reads its log level at its first use: here, as in a training.
with measure_host_peak():
    pass

pytest_plugins = ["time_limit", "recorded_sweeps"]


LONG = ("slurm", "docs", "sweeps", "campaign", "commands", "parallel", "predict")
"""Folders whose files take longest: they come first, so that no worker has one left at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew; read the diff before you commit it"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` asserts that a text is that of `golden/NAME` beside the test's file."""

    def golden(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()

    return golden


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # it would sort by the number of tests, not by their time


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
    """Dtypes of the results in the models of `autocast_users`, which is imported like a user's module."""
    locate("model", {"_target_": "autocast_users.HERE.Region"})
    found: list[Any] = sys.modules["autocast_users"].SEEN
    found.clear()
    yield found
    found.clear()


@pytest.fixture
def foreign_load() -> Iterator[None]:
    """A busy loop in a process without a parent, so that nothing ties it to the tested process."""
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
    """An empty W&B server; `environment` has the variables that a client needs."""
    with WandbServer() as server:
        yield server


@pytest.fixture
def online(wandb_server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> WandbServer:
    """An empty W&B server that this machine is logged in to."""
    for name, value in wandb_server.environment.items():
        monkeypatch.setenv(name, value)
    return wandb_server
