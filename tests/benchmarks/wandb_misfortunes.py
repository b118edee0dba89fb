"""What happens to the runs of `wandb_faults.py`."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from wandb_server import Fault, WandbServer

OUTAGE_S: Final = 10.0


@dataclass
class Trial:
    """One run, while it goes on."""

    server: WandbServer
    directory: Path
    process: subprocess.Popen[str]
    seconds: float
    began: float

    def at(self, moment: float) -> None:
        """Sleep until ``moment`` of the training; negative ones count from its end."""
        time.sleep(max(0.0, self.began + (moment if moment >= 0 else self.seconds + moment) - time.monotonic()))

    def outage(self, begin: float, fault: Fault | None = None) -> None:
        """Ten seconds of ``fault``, or of no server at all."""
        self.at(begin)
        if fault is not None:
            with self.server.failing(fault):
                time.sleep(OUTAGE_S)
        else:
            self.server.refuse()
            time.sleep(OUTAGE_S)
            self.server.accept()

    def drop_many(self) -> None:
        """Requests are dropped one by one, 0.2 s apart; every other of them has had its effect all the same."""
        heard = False
        while time.monotonic() < self.began + self.seconds:
            fault = Fault(status=0, is_heard=heard, times=1)
            with self.server.failing(fault):
                while fault.times and time.monotonic() < self.began + self.seconds:
                    time.sleep(0.01)
            heard = not heard
            time.sleep(0.2)

    def kill(self, *which: str) -> None:
        """SIGKILL, in the middle, for some of the run's processes."""
        self.at(self.seconds / 2)
        (wandb_process,) = psutil.Process(self.process.pid).children()
        family = {"run": self.process.pid, "W&B process": wandb_process.pid}
        pids = [family[name] for name in which if name in family]
        if "wandb-core" in which:
            cores = [one.pid for one in wandb_process.children(recursive=True) if one.name().startswith("wandb-core")]
            assert cores, "W&B has not begun"
            pids += cores
        if "follower" in which:
            pids += [one.pid for one in wandb_process.children()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def fill_disk(self, *, until: float) -> None:
        """No room is left from a third on."""
        self.at(self.seconds / 3)
        ballast = self.directory / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"0" * 4096)
        self.at(until)
        ballast.unlink()


FAULTS: Final[dict[str, Callable[[Trial], None]]] = {
    "none": lambda trial: None,
    "refused for 10 s at the start": lambda trial: trial.outage(0.0),
    "refused for 10 s in the middle": lambda trial: trial.outage(trial.seconds / 3),
    "refused for 10 s at the finish": lambda trial: trial.outage(-1.0),
    "silent for 10 s at the finish": lambda trial: trial.outage(-1.0, Fault(status=500, delay_s=OUTAGE_S)),
    "500 for 10 s at the start": lambda trial: trial.outage(0.0, Fault(status=500)),
    "500 for 10 s in the middle": lambda trial: trial.outage(trial.seconds / 3, Fault(status=500)),
    "500 for 10 s at the finish": lambda trial: trial.outage(-1.0, Fault(status=500)),
    "429 for 10 s in the middle": lambda trial: trial.outage(trial.seconds / 3, Fault(status=429)),
    "429 for 10 s at the finish": lambda trial: trial.outage(-1.0, Fault(status=429)),
    "connections dropped throughout": Trial.drop_many,
    "kill -9 of the run": lambda trial: trial.kill("run"),
    "kill -9 of wandb-core": lambda trial: trial.kill("wandb-core"),
    "kill -9 of both": lambda trial: trial.kill("run", "wandb-core"),
    "kill -9 of the follower": lambda trial: trial.kill("follower"),
    "kill -9 of the follower and its wandb-core": lambda trial: trial.kill("follower", "wandb-core"),
    "kill -9 of the W&B process": lambda trial: trial.kill("W&B process"),
    "kill -9 of all, then a resume": lambda trial: trial.kill("run", "wandb-core", "follower", "W&B process"),
    "disk full for a while": lambda trial: trial.fill_disk(until=-2.0),
    "disk full to the end": lambda trial: trial.fill_disk(until=trial.seconds + 5.0),
}
