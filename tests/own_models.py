"""Models of a user who has trouble: each classifies the digits until something happens."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn


class Digits(nn.Module):
    """Counts the steps of this process and calls `happens` before the loss of each; has dropout, so random state.

    What its class was given is in `given`.
    """

    def __init__(self, **given):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
        self.given, self._num_steps = SimpleNamespace(**given), 0

    def forward(self, images: Tensor) -> Tensor:
        if self.training and images.device.type != "meta":
            self._num_steps += 1
            self.happens(self._num_steps)
        return self.layers(images)

    def happens(self, step: int) -> None:
        """Overridden by the subclasses."""


class Gated(Digits):
    """Waits in step `at`, beside a file that says so, until the file `gate` exists."""

    def happens(self, step: int) -> None:
        gate = Path(self.given.gate)
        if step == self.given.at and not gate.exists():
            gate.with_suffix(".waiting").write_text(str(os.getpid()))
            while not gate.exists():
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

    def happens(self, step: int) -> None:
        if step == 3 and not Path("cure").exists():
            BREAKS[self.given.what](self)


class BrokenRank(Digits):
    """Does `what` in step 3 on the rank `rank`, and leaves a file that says when."""

    def happens(self, step: int) -> None:
        what, rank = self.given.what, str(self.given.rank)
        if step == 3 and os.environ.get("RANK") == rank:
            Path(f"{what}-{rank}").touch()
            BREAKS[what](self)


class Keyed(Digits):
    """Needs an `api_key`, and shows it when it `breaks`."""

    def happens(self, step: int) -> None:
        if self.given.breaks:
            raise RuntimeError(f"the service does not take {self.given.api_key}")


class Noted(Digits):
    """Puts time and process of each step into the file `notes`; in the first, waits 4 s at most for another's."""

    def happens(self, step: int) -> None:
        path = Path(self.given.notes)
        with path.open("a") as notes:
            notes.write(f"{time.monotonic_ns()} {os.getpid()}\n")
        deadline = time.monotonic() + 4
        while step == 1 and len({*path.read_text().split()[1::2]}) == 1 and time.monotonic() < deadline:
            time.sleep(0.02)


class Met(Digits):
    """Waits in its first step until as many runs as `number` are in theirs, then computes a second, and 20 ms a step.

    Each leaves in `folder`, under the id of its process, the times between which it computed.
    """

    def happens(self, step: int) -> None:
        own, began_s = Path(self.given.folder) / str(os.getpid()), time.monotonic()
        if step == 1:
            own.write_text("")
            while len([*own.parent.iterdir()]) < self.given.number:
                assert time.monotonic() < began_s + 60, "no other run came"
                time.sleep(0.02)
            began_s = time.monotonic()
        while time.monotonic() < began_s + (1.0 if step == 1 else 0.02):
            torch.ones(200, 200).mm(torch.ones(200, 200))
        if step == 1:
            own.write_text(json.dumps([began_s, time.monotonic()]))


class Unbuilt(nn.Module):
    """Does `what` while it is built."""

    def __init__(self, what: str) -> None:
        BREAKS[what](self)


class Lookup(Digits):
    """Raises when it is called."""

    def forward(self, images: Tensor) -> Tensor:
        return {}["features"]
