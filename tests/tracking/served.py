"""W&B as tests have it: a server, the process that tracks runs on it, and one that sends what is missing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from wandb_server import Run, WandbServer

from ampsweep.record import RunRecord
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.process import WandbAddress
from ampsweep.tracking.wandb.sync_run import Synced, complete_runs


@contextmanager
def machine(home: Path, **environment: str) -> Iterator[None]:
    """Inside, nobody has a home or W&B settings; the server's address refuses connections, or is in ``environment``."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_") or name == "NETRC"]:
            patch.delenv(name)
        for name in ("HOME", "USERPROFILE", "WANDB_CONFIG_DIR", "WANDB_DIR"):
            patch.setenv(name, str(home))
        for name, value in {"WANDB_BASE_URL": "http://127.0.0.1:9", **environment}.items():
            patch.setenv(name, value)
        yield


def wandb_cores() -> list[psutil.Process]:
    """The wandb-cores below this process that still run; one may end while it is looked at."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if one.name().startswith("wandb-core") and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


@dataclass(frozen=True)
class Wandb:
    """A W&B server, and a W&B process that is logged in to it."""

    server: WandbServer
    address: WandbAddress

    def run(self, record: RunRecord) -> Run:
        """What the server has of the run."""
        (found,) = [run for run in self.server.runs if run.name == record.run_id]
        return found


@dataclass(frozen=True)
class Syncing:
    """Completes one run after another, with less patience than people have."""

    address: WandbAddress

    def __call__(self, directory: Path) -> str:
        """What `complete` returned, or the error it raised, as text."""
        done: list[Synced | None] = []
        try:
            self.address.call(complete_runs, [(directory, "multirun-7")], 3.0, silence_s=10.0, on_message=done.append)
        except WandbError as error:
            return f"WandbError: {error}"
        return str(done[-1])
