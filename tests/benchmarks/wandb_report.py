"""How fast runs come from a W&B server, and in how much memory: `python tests/benchmarks/wandb_report.py`.

The server is the tests' own, on this machine, and takes most of the processor time: the rate is a lower bound of what
the client can do, and says nothing of W&B's limits. JSON goes to stdout, progress to stderr.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from rounds import machine

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "analysis")]

from synthetic_records import run as synthetic_run  # noqa: E402
from wandb_runs import record_run  # noqa: E402
from wandb_server import WandbServer  # noqa: E402

ARMS = ("fp32", "tf32", "amp_bf16", "amp_fp16")
REPORT = {"baseline": "fp32", "margin_pct": 1.0}
KEYS = ("train/loss", "train/grad_norm", "train/lr", "perf/step_ms", "perf/samples_per_sec", "amp/scale")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000)
    arguments = parser.parse_args()
    with WandbServer() as server, tempfile.TemporaryDirectory() as directory:
        _fill(server, arguments.runs, arguments.rows)
        calls = {name: _report(server, Path(directory)) for name in ("first", "again")}
        server.recorded.runs["team", "mine", "id0"].heartbeat_at = "2026-11-21T12:00:00.000Z"
        calls["one run changed"] = _report(server, Path(directory))
    result = {"runs": arguments.runs, "rows": arguments.rows, "machine": machine([os.getloadavg()[0]]), "calls": calls}
    print(json.dumps(result, indent=1))


def _fill(server: WandbServer, num_runs: int, num_rows: int) -> None:
    rows = [{"step": step, **{key: math.exp(-step / num_rows) for key in KEYS}} for step in range(1, num_rows + 1)]
    first = None
    for number in range(num_runs):
        arm, seed = ARMS[number % len(ARMS)], number // len(ARMS)
        _, record = synthetic_run(arm, seed, val_loss=2 + 0.001 * (seed % 7), config={"report": REPORT})
        record.identity.steps = num_rows
        run = record_run(server, f"id{number}", record, rows if first is None else ())
        first = first or run
        run.streams = first.streams


def _report(server: WandbServer, directory: Path) -> dict[str, Any]:
    """One `ampsweep report`: seconds until the runs are there and until it ends, and the memory of its processes."""
    server.recorded.requests.clear()
    began = time.perf_counter()
    command = [sys.executable, "-m", "ampsweep.commands.main", "report", "wandb://team/mine", "--format", "json"]
    process = subprocess.Popen(
        [*command, "--output", str(directory / "runs")],
        env=os.environ | server.environment | {"HOME": str(directory)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    peaks: dict[str, int] = {}
    watch = threading.Thread(target=_watch, args=(process.pid, peaks), daemon=True)
    watch.start()
    assert process.stderr is not None
    said = process.stderr.readline().rstrip()
    loaded_s = time.perf_counter() - began
    rest = process.stderr.read()
    assert process.wait() == 0, rest
    watch.join()
    print(said, file=sys.stderr)
    return {
        "loaded_s": round(loaded_s, 2),
        "whole_s": round(time.perf_counter() - began, 2),
        "num_requests": len(server.recorded.requests),
        "peak_rss_mib": {name: round(size / 2**20) for name, size in peaks.items()},
        "said": said,
    }


def _watch(pid: int, peaks: dict[str, int]) -> None:
    """Peak resident memory of the process and of its wandb-core, ten times a second, until it has ended."""
    try:
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            for one in (process, *process.children(recursive=True)):
                name = "report" if one.pid == pid else one.name()
                peaks[name] = max(peaks.get(name, 0), one.memory_info().rss)
            time.sleep(0.1)
    except psutil.NoSuchProcess:
        return


if __name__ == "__main__":
    main()
