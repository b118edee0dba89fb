"""Runs on a W&B server that fails, then `ampsweep sync`: `python tests/benchmarks/wandb_faults.py`, see README.md.

Each trial is a process that logs rows for 30 s, doing nothing else, on a server of its own, which has one fault. JSON
goes to stdout, progress to stderr.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from wandb_server import Fault, WandbServer

PERIOD_S: Final = 0.1
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

    def kill(self, *which: str) -> None:
        """SIGKILL, in the middle, for some of the run's processes."""
        self.at(self.seconds / 2)
        (wandb_process,) = psutil.Process(self.process.pid).children()
        family = {"run": self.process.pid, "W&B process": wandb_process.pid}
        pids = [family[name] for name in which if name in family]
        if "wandb-core" in which:
            pids += [core.pid for core in wandb_process.children()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def fill_disk(self, *, until: float) -> None:
        self.at(self.seconds / 3)
        ballast = self.directory / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"0" * 4096)
            except OSError:
                pass
        self.at(until)
        ballast.unlink()


def _drop_many(trial: Trial) -> None:
    """Every third request is dropped, every other of those after it has had its effect."""
    stop = time.monotonic() + trial.seconds
    heard = False
    while time.monotonic() < stop:
        fault = Fault(status=0, is_heard=heard, times=1)
        with trial.server.failing(fault):
            while fault.times and time.monotonic() < stop:
                time.sleep(0.01)
        heard = not heard
        time.sleep(0.2)


FAULTS: dict[str, Callable[[Trial], object]] = {
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
    "connections dropped throughout": _drop_many,
    "kill -9 of the run": lambda trial: trial.kill("run"),
    "kill -9 of wandb-core": lambda trial: trial.kill("wandb-core"),
    "kill -9 of both": lambda trial: trial.kill("run", "wandb-core"),
    "kill -9 of the W&B process": lambda trial: trial.kill("W&B process"),
    "kill -9 of all three, then a resume": lambda trial: trial.kill("run", "wandb-core", "W&B process"),
    "disk full for a while": lambda trial: trial.fill_disk(until=-2.0),
    "disk full to the end": lambda trial: trial.fill_disk(until=trial.seconds + 5.0),
}
BEFORE_START: Final = ("refused for 10 s at the start", "500 for 10 s at the start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume-after", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sync", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        _work(arguments.worker, arguments.seconds, arguments.resume_after)
        return
    if arguments.sync:
        _serve_syncs()
        return
    report = {}
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for name in arguments.faults:
            print(name, file=sys.stderr, flush=True)
            try:  # for one that needs more rights
                trials = list(pool.map(lambda _, name=name: _try(name, arguments.seconds), range(arguments.trials)))
            except PermissionError as error:
                report[name] = {"skipped": str(error)}
                continue
            report[name] = _summary(trials)
            print(json.dumps(report[name]), file=sys.stderr, flush=True)
    print(json.dumps({"seconds": arguments.seconds, "cores": os.cpu_count(), "faults": report}, indent=1))


def _summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    added = [trial["added_s"] for trial in trials if trial["added_s"] is not None]
    return {
        "trials": len(trials),
        "equal without sync": statistics.fmean(trial["equal"] for trial in trials),
        "equal after sync": statistics.fmean(trial["equal_after"] for trial in trials),
        "nothing left to a second sync": statistics.fmean(trial["is_idle"] for trial in trials),
        "rows": min(trial["rows"] for trial in trials),
        "start and finish, s": {"median": statistics.median(added), "max": max(added)} if added else None,
        "faults": [trial["note"] for trial in trials if trial["note"]],
    }


def _try(name: str, seconds: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as place,
        WandbServer() as server,
        _disk(Path(place), small="disk" in name) as disk,
    ):
        directory, home = disk / "run", Path(place) / "home"
        directory.mkdir()
        home.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
        environment = {**kept, **server.environment, "HOME": str(home), "OMP_NUM_THREADS": "1"}
        _record().write(directory)
        began_down = name in BEFORE_START
        blocker = threading.Event()
        command = [sys.executable, __file__, "--worker", str(directory), "--seconds", str(seconds)]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # everything is imported
        trial = Trial(server, directory, process, seconds, time.monotonic())
        fault = threading.Thread(target=FAULTS[name], args=(trial,))
        fault.start()
        if began_down:
            blocker.wait(0.1)
        print(file=process.stdin, flush=True)
        out, _ = process.communicate(timeout=seconds + 120)
        fault.join()
        if "resume" in name:
            resumed = subprocess.run(
                [*command[:-1], str(seconds / 3), "--resume-after", str(_rows(directory)[-8]["step"])],
                env=environment,
                input="\n",
                text=True,
                capture_output=True,
                check=True,
            )
            out = resumed.stdout
        return _judged(server, directory, environment, out)


def _judged(server: WandbServer, directory: Path, environment: dict[str, str], out: str) -> dict[str, Any]:
    lines = out.splitlines()
    added = json.loads(lines[-1])["added_s"] if lines and lines[-1].startswith("{") else None
    time.sleep(1.0)  # a W&B process that outlived its run
    equal = _is_equal(server, directory)
    syncs = [_sync(directory, environment) for _ in range(2)]
    after = _is_equal(server, directory)
    note = "" if after else f"{syncs[0]} {[row['step'] for run in server.runs for row in run.rows][:5]}"
    return {
        "added_s": added,
        "equal": equal,
        "equal_after": after,
        "is_idle": ": complete, " in syncs[1],
        "rows": len(_rows(directory)),
        "note": note,
    }


_THREAD: Final = threading.local()


def _sync(directory: Path, environment: dict[str, str]) -> str:
    """What `ampsweep sync` says, in a process that this thread keeps."""
    if not hasattr(_THREAD, "process"):
        _THREAD.process = subprocess.Popen(
            [sys.executable, __file__, "--sync"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    print(json.dumps({"directory": str(directory), "environment": environment}), file=_THREAD.process.stdin, flush=True)
    return str(_THREAD.process.stdout.readline().strip())


def _serve_syncs() -> None:
    """In a process of its own: sync what comes in on stdin, a line each."""
    from ampsweep.config.errors import UserError
    from ampsweep.entries.sync import sync_directories

    for line in sys.stdin:
        order = json.loads(line)
        os.environ.update(order["environment"])
        said: list[str] = []
        try:
            sync_directories([Path(order["directory"])], said.append)
        except UserError as error:
            said.append(f"error: {error}")
        print("; ".join(said), flush=True)


def _rows(directory: Path) -> list[dict[str, Any]]:
    from ampsweep.record import read_history

    return read_history(directory)


def _is_equal(server: WandbServer, directory: Path) -> bool:
    """Whether the one run there has each row once, and an end."""
    rows = _rows(directory)
    return [sorted(run.rows, key=lambda row: row["step"]) for run in server.runs] == [rows] and all(
        run.state != "running" for run in server.runs
    )


@contextmanager
def _disk(place: Path, *, small: bool) -> Iterator[Path]:
    """A folder, on a disk of 1 MiB of its own where it is to be ``small``."""
    if not small:
        yield place
        return
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise PermissionError("only root can mount a small disk")
    disk = place / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _record() -> Any:
    from ampsweep.config.schema import TrackingConfig
    from ampsweep.record import Identity, RunRecord

    identity = Identity(
        experiment="faults",
        precision_mode="fp32",
        dtype="float32",
        model="none",
        task="none",
        data="none",
        batch_size=1,
        grad_accum_steps=1,
        steps=300,
        optimizer="none",
        lr=0.0,
        compile=False,
        channels_last=False,
        seed=0,
        device="cpu",
    )
    tracking = TrackingConfig(mode="online", project="faults")
    config = {"tracking": asdict(tracking)}
    return RunRecord(
        run_id=os.urandom(4).hex(), arm="fp32", pair_key="p", config_hash="h", identity=identity, config=config
    )


def _work(directory: Path, seconds: float, resume_after: int | None) -> None:
    """In a trial's process: track a run that does nothing but log, and say what it was kept from it."""
    from ampsweep.config.schema import TrackingConfig
    from ampsweep.record import RunRecord
    from ampsweep.tracking.factory import make_trackers
    from ampsweep.tracking.wandb_process import WandbProcess

    record = RunRecord.read(directory)
    with WandbProcess() as wandb:
        wandb.address.check(TrackingConfig(**record.config["tracking"]))
        print(flush=True)
        sys.stdin.readline()
        trackers = make_trackers(
            TrackingConfig(**record.config["tracking"]), None, lambda line: print(line, file=sys.stderr), wandb.address
        )
        began = time.perf_counter()
        trackers.start(record, directory, resume_after=resume_after)
        record.write(directory)
        first = time.perf_counter()
        num_rows, reached = round(seconds / PERIOD_S), resume_after or 0
        for number in range(1, num_rows + 1):
            step = reached + number
            trackers.log({"train/loss": 1 / step, "train/lr": 1e-3}, step)
            time.sleep(max(0.0, first + number * PERIOD_S - time.perf_counter()))
        record.status, record.summary = "completed", {"train/loss": 0.5}
        lost = None
        try:
            trackers.finish(record)
        except OSError as error:  # the disk is full
            lost = str(error)
        added_s = time.perf_counter() - began - num_rows * PERIOD_S
        if lost is None:
            record.write(directory)
    print(json.dumps({"added_s": added_s, "lost": lost}), flush=True)


if __name__ == "__main__":
    main()
