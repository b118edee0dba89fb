"""W&B as tests have it: a machine, a server, a W&B process that is logged in to it, and trainings that are tracked."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from wandb_server import Run, WandbServer

from ampsweep.config.schema import TrackingConfig
from ampsweep.records import RunRecord
from ampsweep.tracking.tracker import make_tracker
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress, WandbProcess
from ampsweep.tracking.wandb.sync_run import complete_runs


@contextmanager
def machine(home: Path, **environment: str) -> Iterator[None]:
    """A machine without W&B settings; the server's address refuses connections unless `environment` names another."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_") or name == "NETRC"]:
            patch.delenv(name)
        for name in ("HOME", "USERPROFILE", "WANDB_CONFIG_DIR", "WANDB_DIR"):
            patch.setenv(name, str(home))
        for name, value in {"WANDB_BASE_URL": "http://127.0.0.1:9", **environment}.items():
            patch.setenv(name, value)
        yield


@contextmanager
def wandb_process(home: Path, **environment: str) -> Iterator[WandbAddress]:
    """A W&B process started on such a machine; only its start sees the environment."""
    with ExitStack() as stack:
        with machine(home, **environment):
            process = stack.enter_context(WandbProcess())
        yield process.address


def wandb_cores() -> list[psutil.Process]:
    """The wandb-cores below this process that still run."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith("wandb-core") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until(condition, seconds: float = 30.0):
    """Wait for a condition; returns its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return value


def bits(rows) -> list[dict[str, str]]:
    """Rows whose values are the same to the last bit, NaN included, are equal."""
    return [{key: float(value).hex() for key, value in row.items()} for row in rows]


@dataclass(frozen=True)
class Wandb:
    """A W&B server, and a W&B process that is logged in to it."""

    server: WandbServer
    address: WandbAddress

    def run(self, record: RunRecord) -> Run:
        """The run on the server."""
        (found,) = [run for run in self.server.runs if run.name == record.run_id]
        return found

    def sync(self, directory: Path, silence_s: float = 10.0) -> str:
        """Complete a run on the server; returns what `complete_runs` sent, or its error."""
        done, runs = [], [(directory, "multirun-7")]
        try:
            self.address.call(complete_runs, runs, 3.0, silence_s=silence_s, on_message=done.append)
        except WandbError as error:
            return f"WandbError: {error}"
        return str(done[-1])


ENDLESS = """
import sys, time
from pathlib import Path
from ampsweep.config.schema import TrackingConfig
from ampsweep.records import RunRecord
from ampsweep.tracking.tracker import make_tracker
from ampsweep.tracking.wandb.process import WandbAddress
directory, mode, *address = Path(sys.argv[1]), *sys.argv[2:]
wandb = WandbAddress(address[0], bytes.fromhex(address[1]), int(address[2])) if address else None
record = RunRecord.read(directory)
tracker = make_tracker(TrackingConfig(mode=mode, project="p"), None, str, wandb, str)
tracker.start(record, directory, resume_after=None)
record.write(directory)
for step in range(1, 3000):
    tracker.log({"train/loss": 1 / step}, step)
    time.sleep(0.02)
"""


def endless_training(record, directory, mode, address=None) -> subprocess.Popen[bytes]:
    """A training in a process that somebody has to kill."""
    record.write(directory)
    wandb = [] if address is None else [address.path, address.key.hex(), str(address.pid)]
    return subprocess.Popen([sys.executable, "-c", ENDLESS, str(directory), mode, *wandb])


def train(
    record,
    directory,
    address,
    steps=range(1, 21),
    *,
    events=None,
    rows=None,
    resume_after=None,
    ending=None,
    **tracking,
) -> SimpleNamespace:
    """Track a training to its end; returns lines for the user, `said`, and its waits, `start_s` and `finish_s`.

    Args:
        events: functions to call before a step's row; of step 0 before the start, of step -1 before the end.
        rows: further metrics by step.
        ending: what the record has at the end.
        tracking: settings of the tracking config.
    """
    events, rows, said = events or {}, rows or {}, []
    config = TrackingConfig(**{"mode": "offline", "project": "p", **tracking})
    record.config["tracking"] = asdict(config)
    tracker = make_tracker(config, "multirun-7", said.append, address, pytest.fail)
    record.write(directory)
    events.get(0, int)()
    began = time.perf_counter()
    tracker.start(record, directory, resume_after=resume_after)
    start_s = time.perf_counter() - began
    record.write(directory)
    for step in steps:
        events.get(step, int)()
        tracker.log({"train/loss": 1 / step, **rows.get(step, {})}, step)
    events.get(-1, int)()
    for name, value in {"status": "completed", "summary": {"val/loss": 0.5}, **(ending or {})}.items():
        setattr(record, name, value)
    began = time.perf_counter()
    tracker.finish(record)
    finish_s = time.perf_counter() - began
    record.write(directory)
    return SimpleNamespace(said=said, start_s=start_s, finish_s=finish_s)
