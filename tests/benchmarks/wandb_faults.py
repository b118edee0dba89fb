"""Runs on a W&B server that fails, then `ampsweep sync`: `python tests/benchmarks/wandb_faults.py`, see README.md.

Each trial is a process that logs rows for 30 s, doing nothing else, on a server of its own, which has one fault; one
that could not be made is counted apart. JSON goes to stdout and, fault by fault, to `--json FILE`; progress to stderr.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rounds import machine

sys.path.insert(0, str(Path(__file__).parents[1]))

from wandb_logging import new_record
from wandb_misfortunes import FAULTS, Trial
from wandb_server import WandbServer

from ampsweep.record import read_history, write_atomically

WORKER: Final = [sys.executable, str(Path(__file__).with_name("wandb_logging.py"))]
LATE_S: Final = 120
"""How much longer than it trains a trial may take."""


@dataclass(frozen=True)
class Tried:
    """What became of a trial."""

    equal: bool
    """The server had each row once, and an end, before a sync."""
    equal_after: bool
    is_idle: bool
    """A second sync found nothing to do."""
    num_rows: int
    note: str
    added_s: float | None = None
    """None of a run that was killed."""
    exit_s: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="written again after each fault")
    arguments = parser.parse_args()
    faults: dict[str, Any] = {}
    loads: list[float] = []
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for name in arguments.faults:
            print(name, file=sys.stderr, flush=True)
            trials = [pool.submit(_try, name, arguments.seconds) for _ in range(arguments.trials)]
            faults[name] = _summary(trials, faults.get("none"))
            loads.append(os.getloadavg()[0])
            print(json.dumps(faults[name]), file=sys.stderr, flush=True)
            settings = {"seconds": arguments.seconds, "at_once": arguments.at_once, "machine": machine(loads)}
            text = json.dumps({**settings, "faults": faults}, indent=1) + "\n"
            if arguments.json is not None:
                write_atomically(arguments.json, text)
    print(text, end="")


def _summary(trials: "list[Future[Tried]]", without: dict[str, Any] | None) -> dict[str, Any]:
    """The figures of one fault; ``without`` are those of runs that had none."""
    errors = [error for trial in trials if (error := trial.exception()) is not None]
    tried = [trial.result() for trial in trials if trial.exception() is None]
    summary: dict[str, Any] = {"trials": len(tried)}
    if errors:
        summary["not made"] = {"trials": len(errors), "because": sorted({repr(error) for error in errors})}
    if not tried:
        return summary
    summary |= {
        "equal without sync": statistics.fmean(one.equal for one in tried),
        "equal after sync": statistics.fmean(one.equal_after for one in tried),
        "nothing left to a second sync": statistics.fmean(one.is_idle for one in tried),
        "least rows": min(one.num_rows for one in tried),
        "notes": [one.note for one in tried if one.note],
    }
    if added := [one.added_s for one in tried if one.added_s is not None]:
        summary["kept from training, s"] = {"median": statistics.median(added), "max": max(added)}
        if without and (usual := without.get("kept from training, s")):
            summary["added by the fault, s"] = {
                "median": statistics.median(added) - usual["median"],
                "max": max(added) - usual["median"],
            }
    if exits := [one.exit_s for one in tried if one.exit_s is not None]:
        summary["end of the W&B process, s"] = {"median": statistics.median(exits), "max": max(exits)}
    return summary


def _try(name: str, seconds: float) -> Tried:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place,
        WandbServer() as server,
        _disk(Path(place), small="disk" in name) as disk,
    ):
        directory, home = disk / "run", Path(place) / "home"
        directory.mkdir()
        home.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
        environment = {**kept, **server.environment, "HOME": str(home), "OMP_NUM_THREADS": "1"}
        new_record().write(directory)
        told = _trained(name, server, directory, seconds, environment)
        if "resume" in name:
            again = [*WORKER, "log", str(directory), str(seconds / 3), str(read_history(directory)[-8]["step"])]
            told = subprocess.run(again, env=environment, input="\n", text=True, capture_output=True, check=True).stdout
        return _judged(server, directory, environment, told)


def _trained(name: str, server: WandbServer, directory: Path, seconds: float, environment: dict[str, str]) -> str:
    """Let a run have its fault; what it printed."""
    command = [*WORKER, "log", str(directory), str(seconds)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()  # everything is imported
        trial = Trial(server, directory, process, seconds, time.monotonic())
        with ThreadPoolExecutor(1) as pool:
            fault = pool.submit(FAULTS[name], trial)
            time.sleep(0.1)  # for one that is there at the start
            print(file=process.stdin, flush=True)
            told, _ = process.communicate(timeout=seconds + LATE_S)
            fault.result()
    finally:
        process.kill()
        process.wait()
    return told


def _judged(server: WandbServer, directory: Path, environment: dict[str, str], told: str) -> Tried:
    lines = told.splitlines()
    figures = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    time.sleep(1.0)  # a W&B process that outlived its run
    equal = _is_equal(server, directory)
    syncs = [_sync(directory, environment) for _ in range(2)]
    after = _is_equal(server, directory)
    return Tried(
        equal,
        after,
        is_idle=": complete, " in syncs[1],
        num_rows=len(read_history(directory)),
        note="" if after else f"{syncs[0]} {[row['step'] for run in server.runs for row in run.rows][:5]}",
        added_s=figures.get("added_s"),
        exit_s=figures.get("exit_s"),
    )


_THREAD: Final = threading.local()


def _sync(directory: Path, environment: dict[str, str]) -> str:
    """What `ampsweep sync` says, in a process that this thread keeps."""
    if not hasattr(_THREAD, "process") or _THREAD.process.poll() is not None:
        _THREAD.process = subprocess.Popen([*WORKER, "sync"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(json.dumps({"directory": str(directory), "environment": environment}), file=_THREAD.process.stdin, flush=True)
    said = str(_THREAD.process.stdout.readline().strip())
    if not said:
        raise RuntimeError("the process that syncs has ended")
    return said


def _is_equal(server: WandbServer, directory: Path) -> bool:
    """Whether the one run there has each row once, and an end."""
    rows = read_history(directory)
    return [sorted(run.rows, key=lambda row: row["step"]) for run in server.runs] == [rows] and all(
        run.state != "running" for run in server.runs
    )


@contextmanager
def _disk(place: Path, *, small: bool) -> Iterator[Path]:
    """A folder, on a disk of 1 MiB of its own where it is to be ``small``, which needs the right to mount one."""
    if not small:
        yield place
        return
    disk = place / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


if __name__ == "__main__":
    main()
