"""Models of a user who has trouble: each classifies the digits until something happens."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

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
        """What the subclass is for."""


class Gated(Digits):
    """Waits in step `at` until the gate, a file beside the one that says that it waits, is opened."""

    def __init__(self, at: int, gate: str) -> None:
        super().__init__()
        self._at, self._gate = at, Path(gate)

    def happens(self, step: int) -> None:
        if step == self._at and not self._gate.exists():
            self._gate.with_suffix(".waiting").write_text(str(os.getpid()))
            while not self._gate.exists():
                time.sleep(0.005)


class Broken(Digits):
    """Does `what` in step 3, unless the file `cure` exists."""

    def __init__(self, what: str, cure: str = "cure") -> None:
        super().__init__()
        self._what, self._cure = what, Path(cure)

    def happens(self, step: int) -> None:
        if step == 3 and not self._cure.exists():
            getattr(self, self._what)()

    def raises(self) -> None:
        raise RuntimeError("my model broke")

    def is_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def leaves(self) -> None:
        os._exit(7)

    def crashes(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def aborts(self) -> None:
        os.abort()

    def deletes_its_directory(self) -> None:
        for record in Path("outputs").rglob("run.json"):
            shutil.rmtree(record.parent)

    def hangs(self) -> None:
        time.sleep(1000)

    def exits(self) -> None:
        sys.exit(5)

    def is_fine(self) -> None:
        pass

    def runs_out_of_memory(self) -> None:
        torch.empty(10**15)

    def has_no_half_kernel(self) -> None:
        with torch.autocast("cpu", enabled=False):
            torch.linalg.inv(torch.zeros(2, 2, dtype=torch.float16))

    def diverges(self) -> None:
        for parameter in self.parameters():
            parameter.data.fill_(torch.nan)


class Keyed(Digits):
    """Needs a key, and tells it when it breaks."""

    def __init__(self, api_key: str, breaks: bool) -> None:
        super().__init__()
        self._api_key, self._breaks = api_key, breaks

    def happens(self, step: int) -> None:
        if self._breaks:
            raise RuntimeError(f"the service does not take {self._api_key}")


class Noted(Digits):
    """Notes time and process of each step in a file, and waits in its first a while for another training's notes."""

    def __init__(self, notes: str) -> None:
        super().__init__()
        self._notes = Path(notes)

    def happens(self, step: int) -> None:
        with self._notes.open("a") as notes:
            notes.write(f"{time.monotonic_ns()} {os.getpid()}\n")
        deadline = time.monotonic() + 4
        while step == 1 and self._alone() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _alone(self) -> bool:
        return len({line.split()[1] for line in self._notes.read_text().splitlines()}) == 1


class NotAModule:
    """No nn.Module."""


class Unwilling(nn.Module):
    """Raises while it is built."""

    def __init__(self) -> None:
        raise KeyError("no such layer")


class Leaving(nn.Module):
    """Leaves Python while it is built."""

    def __init__(self) -> None:
        sys.exit(5)


class Empty(nn.Module):
    """Nothing to train."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


class Colour(nn.Module):
    """Takes images of three channels, which the digits are not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 10, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images).mean((2, 3))


class Lookup(nn.Linear):
    """Raises when it is called."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return {}["features"]


class Crashing(nn.Module):
    """Crashes while it is built."""

    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Endless(nn.Module):
    """Is never built."""

    def __init__(self) -> None:
        time.sleep(1000)
