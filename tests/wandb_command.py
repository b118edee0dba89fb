"""The `wandb` command line, run by a user who has an empty home and a W&B server of their own."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
from wandb_server import ENTITY, Sweep, WandbServer

ROOT = Path(__file__).parents[1]
PATIENCE_S = 240.0

_QUICK = "from wandb.wandb_agent import Agent; Agent.POLL_INTERVAL = 0.2; from wandb.cli.cli import cli; cli()"
"""The command line, asking every 0.2 s where it would ask every 5 s, for which it has no option."""


@dataclass(frozen=True)
class Ended:
    code: int
    said: str


class WandbCommand:
    """Runs `wandb` in ``directory``, where `train.py` lies as in the repository; what is left of it is killed."""

    def __init__(self, server: WandbServer, directory: Path, *paths: Path) -> None:
        self.server, self.directory = server, directory
        self._started: list[subprocess.Popen[str]] = []
        for name in ("home", "t"):
            (directory / name).mkdir()
        (directory / "train.py").symlink_to(ROOT / "train.py")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "AMPSWEEP_"))}
        path = [*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {
            **kept,
            **server.environment,
            "HOME": str(directory / "home"),
            "TMPDIR": str(directory / "t"),  # of device locks, and of sockets, whose paths may have 107 characters
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                for left in (*psutil.Process(process.pid).children(recursive=True), process):
                    left.kill()
                process.communicate()

    def sweep(self, file: Path) -> Sweep:
        """`wandb sweep FILE`."""
        ended = finish(self._start([sys.executable, "-m", "wandb", "sweep", "--project", "sweeps", str(file)]))
        assert ended.code == 0, ended.said
        found = re.search(r"wandb agent \S+/(\S+)", ended.said)
        assert found is not None, ended.said
        return self.server.recorded.sweeps[ENTITY, "sweeps", found[1]]

    def agent(self, sweep: Sweep, *options: str, quick: bool = True) -> subprocess.Popen[str]:
        """`wandb agent SWEEP`, which goes on."""
        command = ["-c", _QUICK] if quick else ["-m", "wandb"]
        path = f"{sweep.entity}/{sweep.project}/{sweep.name}"
        return self._start([sys.executable, *command, "agent", *options, path])

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self._started.append(subprocess.Popen(command, cwd=self.directory, env=self._environment, **output))
        return self._started[-1]


def finish(process: subprocess.Popen[str]) -> Ended:
    """Wait until the command has ended."""
    said, _ = process.communicate(timeout=PATIENCE_S)
    return Ended(process.returncode, said)
