"""Models of a user who has trouble: each classifies the digits until something happens."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn


class Digits(nn.Module):
    """Counts the steps of this process and calls `happens` before the loss of each; has dropout, so random state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
        self._num_steps = 0

    def forward(self, images: Tensor) -> Tensor:
        if self.training and images.device.type != "meta":
            self._num_steps += 1
            self.happens(self._num_steps)
        return self.layers(images)

    def happens(self, step: int) -> None:
        """Overridden by the subclasses."""


class Gated(Digits):
    """Waits in step `at`, beside a file that says so, until the file `gate` exists."""

    def __init__(self, at: int, gate: str) -> None:
        super().__init__()
        self._at, self._gate = at, Path(gate)

    def happens(self, step: int) -> None:
        if step == self._at and not self._gate.exists():
            self._gate.with_suffix(".waiting").write_text(str(os.getpid()))
            while not self._gate.exists():
                time.sleep(0.005)


def raises(model: nn.Module) -> None:
    raise RuntimeError("my model broke")


def exits(model: nn.Module) -> None:
    sys.exit(5)


def deletes_its_directory(model: nn.Module) -> None:
    for record in Path("outputs").rglob("run.json"):
        shutil.rmtree(record.parent)


def has_no_half_kernel(model: nn.Module) -> None:
    with torch.autocast("cpu", enabled=False):
        torch.linalg.inv(torch.zeros(2, 2, dtype=torch.float16))


BREAKS = {
    "is_fine": lambda model: None,
    "is_killed": lambda model: os.kill(os.getpid(), signal.SIGKILL),
    "crashes": lambda model: os.kill(os.getpid(), signal.SIGSEGV),
    "leaves": lambda model: os._exit(7),
    "leaves_well": lambda model: os._exit(0),
    "hangs": lambda model: time.sleep(1000),
    "leaves_a_thread": lambda model: threading.Thread(target=time.sleep, args=(1000,)).start(),
    "runs_out_of_memory": lambda model: torch.empty(10**15),
    "diverges": lambda model: [parameter.data.fill_(torch.nan) for parameter in model.parameters()],
} | {function.__name__: function for function in (raises, exits, deletes_its_directory, has_no_half_kernel)}


class Broken(Digits):
    """Does `what` in step 3, unless the file `cure` exists."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def happens(self, step: int) -> None:
        if step == 3 and not Path("cure").exists():
            BREAKS[self._what](self)


class BrokenRank(Broken):
    """Does `what` in step 3 on one rank, and leaves a file that says when."""

    def __init__(self, what: str, rank: int) -> None:
        super().__init__(what)
        self._rank = rank

    def happens(self, step: int) -> None:
        if step == 3 and os.environ.get("RANK") == str(self._rank):
            Path(f"{self._what}-{self._rank}").touch()
            BREAKS[self._what](self)


class Keyed(Digits):
    """Needs a key, and shows it when it breaks."""

    def __init__(self, api_key: str, breaks: bool) -> None:
        super().__init__()
        self._api_key, self._breaks = api_key, breaks

    def happens(self, step: int) -> None:
        if self._breaks:
            raise RuntimeError(f"the service does not take {self._api_key}")


class Noted(Digits):
    """Notes time and process of each step in a file; waits in its first for another training's notes, 4 s at most."""

    def __init__(self, notes: str) -> None:
        super().__init__()
        self._notes = Path(notes)

    def happens(self, step: int) -> None:
        with self._notes.open("a") as notes:
            notes.write(f"{time.monotonic_ns()} {os.getpid()}\n")
        deadline = time.monotonic() + 4
        while step == 1 and len({*self._notes.read_text().split()[1::2]}) == 1 and time.monotonic() < deadline:
            time.sleep(0.02)


class Met(Digits):
    """Waits in its first step until as many runs as `number` are in theirs, then computes a second, and 20 ms a step.

    Each leaves in `folder`, under the id of its process, the cores that its threads may run on, its number of threads
    of torch, and the times between which it computed.
    """

    def __init__(self, folder: str, number: int) -> None:
        super().__init__()
        self._folder, self._number = Path(folder), number

    def happens(self, step: int) -> None:
        if step != 1:
            self._compute(0.02)
            return
        own = self._folder / str(os.getpid())
        own.write_text("")
        deadline_s = time.monotonic() + 60
        while len([*self._folder.iterdir()]) < self._number:
            assert time.monotonic() < deadline_s, "no other run came"
            time.sleep(0.02)
        began_s = time.monotonic()
        self._compute(1.0)
        cores = {core for thread in psutil.Process().threads() for core in os.sched_getaffinity(thread.id)}
        own.write_text(json.dumps([sorted(cores), torch.get_num_threads(), began_s, time.monotonic()]))

    def _compute(self, seconds: float) -> None:
        began_s = time.monotonic()
        while time.monotonic() < began_s + seconds:
            torch.ones(200, 200).mm(torch.ones(200, 200))


class Unbuilt(nn.Module):
    """Does `what` while it is built."""

    def __init__(self, what: str) -> None:
        BREAKS[what](self)


class Lookup(nn.Linear):
    """Raises when it is called."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return {}["features"]
