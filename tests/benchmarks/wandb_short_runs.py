"""Trainings of less than a second, each on a W&B server with one fault: `python tests/benchmarks/wandb_short_runs.py`.

Each run is `train.py` as a person calls it. JSON goes to stdout: fault by fault the rows that are
lost, in the history and on the server after `ampsweep sync`; the seconds that the command took beyond those with a
healthy server; what was printed about W&B; and the exit code. Progress goes to stderr.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from rounds import machine
from wandb_server import Fault, WandbServer

from ampsweep.records import find_records, read_history

TRAIN: Final = Path(__file__).parents[2] / "train.py"
NUM_STEPS: Final = 40
LIMIT_S: Final = 180
HEALTHY: Final = "none"
ARGUMENTS: Final = ("model=mlp_small", "data=digits", "device=cpu", f"trainer.steps={NUM_STEPS}", "trainer.log_every=1")
COUNTS: Final = ("rows_lost", "rows_lost_after_sync", "rows_doubled")

Trouble = tuple[dict[str, Any] | None, str]
"""The settings of a server's fault, None for a server that takes no connections, and when it has it."""

KINDS: Final[dict[str, dict[str, Any]]] = {
    "breaks connections off": {"status": 0},
    "is silent": {"status": 200, "delay_s": 600.0},
    **{f"answers {status}": {"status": status} for status in (500, 429, 503, 403)},
    "takes 0.2 s": {"status": 200, "delay_s": 0.2},
    "breaks connections off once it has heard": {"status": 0, "is_heard": True},
}


def _troubles() -> dict[str, Trouble]:
    deaf = "takes no connections"
    found: dict[str, Trouble] = {deaf: (None, "throughout"), f"{deaf} at the start": (None, "at the start")}
    usual, unheard = [*KINDS][:4], "breaks connections off once it has heard"
    for what, on, kinds in (
        ("", "", [*usual, "answers 503", "takes 0.2 s"]),
        (" to the start of a run", "UpsertBucket", [*usual, unheard]),
        (" to rows", "file_stream", [*usual, unheard]),
        (" to files", "/storage/", [*usual[:3], "answers 403"]),
        (" to addresses for files", "CreateRunFiles", usual[:3]),
        (" to questions who one is", "Viewer", usual[:3]),
    ):
        found |= {f"{kind}{what}": ({"on": on, **KINDS[kind]}, "throughout") for kind in kinds}
    found |= {f"{kind} at the start": (KINDS[kind], "at the start") for kind in usual[:3]}
    return found | {f"{kind} at the end": (KINDS[kind], "at the end") for kind in usual}


TROUBLES: Final = _troubles()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3, help="runs a fault; twice as many without any")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--faults", nargs="+", choices=list(TROUBLES), default=list(TROUBLES))
    arguments = parser.parse_args()
    names = [name for _ in range(arguments.trials) for name in (HEALTHY, *arguments.faults, HEALTHY)]
    tried: dict[str, list[dict[str, Any]]] = {}
    loads = []
    with ThreadPoolExecutor(arguments.at_once) as pool:  # fault after fault, again and again: drift falls on all alike
        for name, one in zip(names, pool.map(_try, names), strict=True):
            print(f"{name}: {one}", file=sys.stderr, flush=True)
            tried.setdefault(name, []).append(one)
            loads.append(os.getloadavg()[0])
    usual_s = statistics.median(one["seconds"] for one in tried[HEALTHY])
    faults = {name: _summary(found, usual_s) for name, found in tried.items()}
    report = {"machine": machine(loads), "num_faults": len(faults) - 1, "steps": NUM_STEPS}
    report["seconds_with_a_healthy_server"] = round(usual_s, 3)
    report["largest_median_added_s"] = max(of["added_s"]["median"] for name, of in faults.items() if name != HEALTHY)
    report |= {name: sum(one[name] for one in faults.values()) for name in COUNTS}
    print(json.dumps(report | {"faults": faults}, indent=1))


def _summary(tried: list[dict[str, Any]], usual_s: float) -> dict[str, Any]:
    added = [one["seconds"] - usual_s for one in tried]
    return {
        "trials": len(tried),
        "added_s": {"median": round(statistics.median(added), 3), "max": round(max(added), 3)},
        **{name: sum(one[name] for one in tried) for name in COUNTS},
        "rows_there_at_the_end": [one["rows_there"] for one in tried],
        "exit_codes": sorted({one["exit_code"] for one in tried}),
        "sync_exit_codes": sorted({one["sync_exit_code"] for one in tried}),
        "said": sorted({line for one in tried for line in one["said"]}),
    }


def _try(name: str) -> dict[str, Any]:
    """One run on one server."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, WandbServer() as server:
        place = Path(folder)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
        # Locks of devices are in the temporary folder: no run here is to wait for another.
        environment |= {**server.environment, "HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}

        def python(*command: str) -> "subprocess.CompletedProcess[str]":
            options: dict[str, Any] = {"cwd": place, "env": environment, "timeout": LIMIT_S, "check": False}
            return subprocess.run([sys.executable, *command], capture_output=True, text=True, **options)

        with _troubled(server, None if name == HEALTHY else TROUBLES[name], place):
            began_s = time.monotonic()
            done = python(str(TRAIN), *ARGUMENTS)
            seconds = time.monotonic() - began_s
            there = _rows(server)
        ((directory, record),) = find_records(place / "outputs").records
        history = {row["step"] for row in read_history(directory, record.history_digest)}
        synced = python("-m", "ampsweep.commands.main", "sync", str(directory))
        after = _rows(server)
        printed = done.stderr.replace(server.url, "SERVER").replace(str(directory), "DIRECTORY")
        return {
            "exit_code": done.returncode,
            "said": [line for line in printed.splitlines() if "W&B" in line],
            "seconds": seconds,
            "rows_lost": len(set(range(1, NUM_STEPS + 1)) - history),
            "rows_there": len(set(there)),
            "rows_lost_after_sync": len(history - set(after)),
            "rows_doubled": len(after) - len(set(after)),
            "sync_exit_code": synced.returncode,
        }


def _rows(server: WandbServer) -> list[int]:
    with server.lock:
        return [row["step"] for run in server.runs for row in run.rows if "step" in row]


@contextmanager
def _troubled(server: WandbServer, trouble: Trouble | None, place: Path) -> Iterator[None]:
    """The trouble, as long as its run lasts, or until its history begins, or from when most of that is there."""
    if trouble is None:
        yield
        return
    settings, when = trouble
    at_end, over = when == "at the end", Event()

    def change(begins: bool) -> None:
        if settings is not None:
            server.faults[:] = [Fault(**settings)] if begins else []
        else:
            (server.refuse if begins else server.accept)()

    def watch() -> None:
        num_rows = {"at the start": 5, "at the end": NUM_STEPS - 5, "throughout": NUM_STEPS + 1}[when]
        while sum(path.read_bytes().count(b"\n") for path in place.rglob("history.jsonl")) < num_rows:
            if over.wait(0.005):
                return
        change(begins=at_end)

    watcher = Thread(target=watch, daemon=True)
    if not at_end:
        change(begins=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        if when != "at the start":
            change(begins=False)


if __name__ == "__main__":
    main()
