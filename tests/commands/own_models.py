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
from torch.utils.data import Dataset, get_worker_info


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

    def leaves_well(self) -> None:
        os._exit(0)

    def leaves_a_thread(self) -> None:
        threading.Thread(target=time.sleep, args=(1000,)).start()

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
            if time.monotonic() > deadline_s:
                raise RuntimeError("no other run came")
            time.sleep(0.02)
        began_s = time.monotonic()
        self._compute(1.0)
        process = psutil.Process()
        cores = {core for thread in process.threads() for core in os.sched_getaffinity(thread.id)}
        own.write_text(json.dumps([sorted(cores), torch.get_num_threads(), began_s, time.monotonic()]))

    def _compute(self, seconds: float) -> None:
        began_s = time.monotonic()
        while time.monotonic() < began_s + seconds:
            torch.ones(200, 200).mm(torch.ones(200, 200))


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures whose workers leave in `folder`, under their parent's id, the cores they may run on."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        if get_worker_info() is not None:
            (self._folder / str(os.getppid())).write_text(json.dumps(psutil.Process().cpu_affinity()))
        return torch.full((8, 8), item / 64), item % 10


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


class BrokenRank(Broken):
    """Does `what` in step 3 on one rank, and leaves a file that says when."""

    def __init__(self, what: str, rank: int) -> None:
        super().__init__(what)
        self._rank = rank

    def happens(self, step: int) -> None:
        if step == 3 and os.environ.get("RANK") == str(self._rank):
            Path(f"{self._what}-{self._rank}").touch()
            getattr(self, self._what)()

    def stops(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def signals_all(self) -> None:
        os.killpg(0, signal.SIGTERM)
