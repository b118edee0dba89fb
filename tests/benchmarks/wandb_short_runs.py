"""Trainings of less than a second, each on a W&B server with one fault: `python tests/benchmarks/wandb_short_runs.py`.

Each run is `train.py` as a person calls it. JSON goes to stdout, or to `--json FILE`: fault by fault the rows that are
lost, in the history and on the server after `ampsweep sync`; the seconds that the run waited for W&B at its start and
its end, beyond what it waits for a healthy server; what was said; and the exit code. Progress goes to stderr.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from rounds import machine
from wandb_server import Fault, WandbServer

from ampsweep.record import find_records, read_history, write_atomically

NUM_STEPS: Final = 40
LIMIT_S: Final = 180
HEALTHY: Final = "none"

_TIMED: Final = """
import json, sys, time
from pathlib import Path
from ampsweep.tracking.tracker import Tracker
from ampsweep.tracking.wandb.process import WandbAddress
waited, file = {}, Path(sys.argv[1])
def timed(kind, name):
    inner = getattr(kind, name)
    def outer(*args, **options):
        began = time.monotonic()
        try:
            return inner(*args, **options)
        finally:
            waited[name] = waited.get(name, 0.0) + time.monotonic() - began
            file.write_text(json.dumps(waited))
    setattr(kind, name, outer)
timed(WandbAddress, "call"), timed(Tracker, "start"), timed(Tracker, "finish")
sys.argv[:] = ["train.py", *sys.argv[2:]]
from ampsweep.commands.train import main
sys.exit(main())
"""
"""The command, timed where it may wait for W&B."""

When = Literal["throughout", "at the start", "at the end"]


@dataclass(frozen=True)
class Trouble:
    """A fault of the server, and when it has it; without one it takes no connections."""

    fault: Callable[[], Fault] | None
    when: When = "throughout"


def _kinds(on: str, *kinds: str) -> Iterator[tuple[str, Callable[[], Fault]]]:
    known: dict[str, dict[str, Any]] = {
        "breaks connections off": {"status": 0},
        "breaks connections off once it has heard": {"status": 0, "is_heard": True},
        "is silent": {"status": 200, "delay_s": 600.0},
        "answers 500": {"status": 500},
        "answers 503": {"status": 503},
        "answers 429": {"status": 429},
        "answers 403": {"status": 403},
        "takes 0.2 s": {"status": 200, "delay_s": 0.2},
    }
    for kind in kinds:
        yield kind, lambda settings=known[kind]: Fault(on=on, **settings)


def _troubles() -> dict[str, Trouble]:
    found = {"takes no connections": Trouble(None)}
    usual = ("breaks connections off", "is silent", "answers 500", "answers 429")
    for kind, fault in _kinds("", *usual, "answers 503", "takes 0.2 s"):
        found[kind] = Trouble(fault)
    for what, on, kinds in (
        ("the start of a run", "UpsertBucket", (*usual, "breaks connections off once it has heard")),
        ("rows", "file_stream", (*usual, "breaks connections off once it has heard")),
        ("files", "/storage/", ("breaks connections off", "is silent", "answers 500", "answers 403")),
        ("addresses for files", "CreateRunFiles", ("breaks connections off", "is silent", "answers 500")),
        ("questions who one is", "Viewer", ("breaks connections off", "is silent", "answers 500")),
    ):
        for kind, fault in _kinds(on, *kinds):
            found[f"{kind} to {what}"] = Trouble(fault)
    found["takes no connections at the start"] = Trouble(None, "at the start")
    whens: tuple[When, ...] = ("at the start", "at the end")
    for when in whens:
        for kind, fault in _kinds("", *(usual if when == "at the end" else usual[:3])):
            found[f"{kind} {when}"] = Trouble(fault, when)
    return found


TROUBLES: Final = _troubles()


@dataclass(frozen=True)
class Tried:
    """One run on one server."""

    exit_code: int
    said: list[str]
    """Lines about W&B on stderr, the addresses of this try taken out."""
    waited_s: float
    rows_lost: int
    """Of those that the training logged: missing in the history."""
    rows_there: int
    """On the server at its end."""
    rows_lost_after_sync: int
    rows_doubled: int
    sync_code: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3, help="runs a fault; twice as many without any")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--faults", nargs="+", choices=list(TROUBLES), default=list(TROUBLES))
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    names = [name for _ in range(arguments.trials) for name in (HEALTHY, *arguments.faults, HEALTHY)]
    tried: dict[str, list[Tried]] = {}
    loads = []
    with ThreadPoolExecutor(arguments.at_once) as pool:  # fault after fault, again and again: drift falls on all alike
        for name, one in zip(names, pool.map(_try, names), strict=True):
            print(f"{name}: {one}", file=sys.stderr, flush=True)
            tried.setdefault(name, []).append(one)
            loads.append(os.getloadavg()[0])
    usual_s = statistics.median(one.waited_s for one in tried[HEALTHY])
    faults = {name: _summary(found, usual_s) for name, found in tried.items()}
    worst_s = max(one["added_s"]["median"] for name, one in faults.items() if name != HEALTHY)
    report = {
        "machine": machine(loads),
        "num_faults": len(faults) - 1,
        "steps": NUM_STEPS,
        "waits_for_a_healthy_server_s": round(usual_s, 3),
        "largest_median_added_s": round(worst_s, 3),
        "rows_lost": sum(one["rows_lost"] for one in faults.values()),
        "rows_lost_after_sync": sum(one["rows_lost_after_sync"] for one in faults.values()),
        "rows_doubled": sum(one["rows_doubled"] for one in faults.values()),
        "faults": faults,
    }
    text = json.dumps(report, indent=1) + "\n"
    if arguments.json is not None:
        write_atomically(arguments.json, text)
    else:
        print(text, end="")


def _summary(tried: list[Tried], usual_s: float) -> dict[str, Any]:
    added = [one.waited_s - usual_s for one in tried]
    counts = ("rows_lost", "rows_lost_after_sync", "rows_doubled")
    return {
        "trials": len(tried),
        "added_s": {"median": round(statistics.median(added), 3), "max": round(max(added), 3)},
        **{name: sum(asdict(one)[name] for one in tried) for name in counts},
        "rows_there_at_the_end": [one.rows_there for one in tried],
        "exit_codes": sorted({one.exit_code for one in tried}),
        "sync_exit_codes": sorted({one.sync_code for one in tried}),
        "said": sorted({line for one in tried for line in one.said}),
    }


def _try(name: str) -> Tried:
    trouble = None if name == HEALTHY else TROUBLES[name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, WandbServer() as server:
        place = Path(folder)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
        # Locks of devices are in the temporary folder: no run here is to wait for another.
        own = {"HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        environment = {**kept, **server.environment, **own}
        arguments = [
            "model=mlp_small",
            "data=digits",
            "device=cpu",
            f"trainer.steps={NUM_STEPS}",
            "trainer.log_every=1",
        ]
        command = [sys.executable, "-c", _TIMED, str(place / "waited.json"), *arguments]
        with _troubled(server, trouble, place):
            done = subprocess.run(
                command, cwd=place, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            there = _rows(server)
        ((directory, record),) = find_records(place / "outputs").records
        history = {row["step"] for row in read_history(directory, record.history_digest)}
        synced = subprocess.run(
            [sys.executable, "-m", "ampsweep.commands.main", "sync", str(directory)],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        after = _rows(server)
        hidden = {server.url: "SERVER", str(directory): "DIRECTORY"}
        return Tried(
            exit_code=done.returncode,
            said=[_without(line, hidden) for line in done.stderr.splitlines() if "W&B" in line],
            waited_s=sum(json.loads((place / "waited.json").read_text()).values()),
            rows_lost=len(set(range(1, NUM_STEPS + 1)) - history),
            rows_there=len(set(there)),
            rows_lost_after_sync=len(history - set(after)),
            rows_doubled=len(after) - len(set(after)),
            sync_code=synced.returncode,
        )


def _rows(server: WandbServer) -> list[int]:
    with server.lock:
        return [row["step"] for run in server.runs for row in run.rows if "step" in row]


def _without(line: str, hidden: dict[str, str]) -> str:
    for text, name in hidden.items():
        line = line.replace(text, name)
    return line


@contextmanager
def _troubled(server: WandbServer, trouble: Trouble | None, place: Path) -> Iterator[None]:
    """The trouble, as long as its run lasts, or until its history begins, or from when most of that is there."""
    over = False

    def rows() -> int:
        return sum(path.read_bytes().count(b"\n") for path in place.glob("outputs/**/history.jsonl"))

    def change(begins: bool) -> None:
        if trouble is None:
            return
        if trouble.fault is not None:
            server.faults[:] = [trouble.fault()] if begins else []
        elif begins:
            server.refuse()
        else:
            server.accept()

    def watch(num_rows: int, begins: bool) -> None:
        while not over and rows() < num_rows:
            time.sleep(0.005)
        if not over:
            change(begins)

    watcher = None
    if trouble is not None:
        if trouble.when != "at the end":
            change(begins=True)
        if trouble.when != "throughout":
            at_end = trouble.when == "at the end"
            watcher = Thread(target=watch, args=(NUM_STEPS - 5 if at_end else 5, at_end), daemon=True)
            watcher.start()
    try:
        yield
    finally:
        over = True
        if watcher is not None:
            watcher.join()
        if trouble is not None and trouble.when != "at the start":
            change(begins=False)


if __name__ == "__main__":
    main()
