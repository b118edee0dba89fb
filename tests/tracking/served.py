"""W&B as tests have it: a server, the process that tracks runs on it, and one that sends what is missing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from wandb_server import Run, WandbServer

from ampsweep.record import RunRecord
from ampsweep.tracking.wandb.process import WandbAddress


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


@dataclass(frozen=True)
class Wandb:
    """A W&B server, and a W&B process that is logged in to it."""

    server: WandbServer
    address: WandbAddress

    def run(self, record: RunRecord) -> Run:
        """What the server has of the run."""
        (found,) = [run for run in self.server.runs if run.name == record.run_id]
        return found


_SYNC = """
import sys
import traceback
from pathlib import Path
from ampsweep.record import RunRecord
from ampsweep.tracking.wandb import api, sync_run
from ampsweep.tracking.wandb.outage import Patience
sync_run.COMMAND_PATIENCE, sync_run.ASK_S = Patience(), 3
for line in iter(sys.stdin.readline, ""):
    directory = Path(line.rstrip("\\n"))
    try:
        with api.wandb_server():
            print(sync_run.complete(RunRecord.read(directory), directory, group="multirun-7"), flush=True)
    except api.WandbError as error:
        traceback.print_exc()
        print(f"WandbError: {error}", flush=True)
"""


class Syncing:
    """A process that completes one run after another, with less patience than people have; it lives inside `with`."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SYNC], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=30)

    def __call__(self, directory: Path) -> str:
        """What `complete` returned, or the error it raised, as text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(directory, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().rstrip("\n")
