"""What `ampsweep report` costs by number of runs: `python tests/benchmarks/report_scale.py`, see README.md.

JSON goes to stdout, progress to stderr.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from rounds import environment, machine, run, spread

SIZES = (100, 300, 1000)
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--directory", type=Path, help="where to keep the runs, for another time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        results = {num_runs: _measure(directory, num_runs, arguments.rounds) for num_runs in sorted(arguments.runs)}
    loads = [one["load"] for samples in results.values() for one in samples["rounds"]]
    print(json.dumps({"machine": machine(loads), "runs": results, "growth": _growth(results)}, indent=1))


def _measure(directory: Path, num_runs: int, num_rounds: int) -> dict[str, Any]:
    """The command on the first `num_runs` runs, which lie in a directory of their own number."""
    tree = directory / str(num_runs)
    # By a process of its own: the peak of a process that is started is at least that of the one that starts it.
    run([sys.executable, str(Path(__file__).with_name("report_tree.py")), str(tree), str(num_runs)], directory)
    rounds = []
    for number in range(num_rounds):
        rounds.append(_report(tree) | {"load": os.getloadavg()[0]})
        print(f"{num_runs} runs, round {number + 1} of {num_rounds}: {json.dumps(rounds[-1])}", file=sys.stderr)
    figures = {key: spread([one[key] for one in rounds]) for key in rounds[0] if key != "load"}
    sizes = {f"{path.suffix[1:]}_mib": path.stat().st_size / MIB for path in sorted(tree.glob("comparison.*"))}
    histories = sum(path.stat().st_size for path in tree.glob("*/history.jsonl"))
    return {"histories_mib": histories / MIB, **figures, **sizes, "rounds": rounds}


def _report(tree: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "ampsweep.commands.main", "report", str(tree)]
    began_s = time.perf_counter()
    process = subprocess.Popen(command, env=environment(tree), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    took_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed")
    kib = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return {"seconds": took_s, "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_rss_mib": kib / 1024}


def _growth(results: dict[int, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What a further run costs, from each number of runs to the next: the same where cost is linear."""
    growth = {}
    for fewer, more in pairwise(sorted(results)):

        def per_run(figure: Callable[[dict[str, Any]], float], fewer: int = fewer, more: int = more) -> float:
            return (figure(results[more]) - figure(results[fewer])) / (more - fewer)

        growth[f"{fewer} to {more}"] = {
            "ms_per_run": per_run(lambda one: 1000 * one["seconds"]["median"]),
            "rss_kib_per_run": per_run(lambda one: 1024 * one["peak_rss_mib"]["median"]),
            "page_kib_per_run": per_run(lambda one: 1024 * one["html_mib"]),
        }
    return growth


if __name__ == "__main__":
    main()
