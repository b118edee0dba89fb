"""What thousands of short runs cost to load, compare and show: `python tests/benchmarks/many_runs.py`, see README.md.

Sweeps of several shapes, each grown from 1,000 to 10,000 runs of 200 rows; every measurement in a process of its own.
JSON goes to stdout, progress to stderr.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rounds import environment, machine, run

# Named here, too: to import the tree's torch would be counted as memory of every process that is started.
SHAPES = ("seeds", "arms", "sizes", "random_search", "failures", "alone", "resumed", "predicted", "searches", "long")
SIZES = (1000, 3000, 10_000)
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    parser.add_argument("--runs", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--directory", type=Path, help="where to keep the runs and pages, for another time")
    arguments = parser.parse_args()
    results = {shape: _of_shape(shape, sorted(arguments.runs), arguments.directory) for shape in arguments.shapes}
    print(json.dumps({"machine": machine([os.getloadavg()[0]]), "shapes": results}, indent=1))


def _of_shape(shape: str, sizes: Sequence[int], kept: Path | None) -> dict[str, Any]:
    """The figures of the shape at every size, and the growth of each per run from the smallest to the largest."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = (kept or Path(temporary)) / shape
        found = {}
        for num_runs in sizes:
            write = [sys.executable, str(HERE / "many_runs_tree.py"), shape, str(tree), str(num_runs)]
            if len([*tree.glob("*/run.json")]) > num_runs:
                shutil.rmtree(tree)
            run(write, HERE)
            command = [sys.executable, str(HERE / "many_runs_measured.py"), str(tree)]
            said = subprocess.run(command, env=environment(tree), stdout=subprocess.PIPE, text=True, check=True).stdout
            found[num_runs] = json.loads(said)
            print(f"{shape}, {num_runs} runs: {said.strip()}", file=sys.stderr)
    return {"runs": found, "per_run_ratio": _ratios(found[sizes[0]], found[sizes[-1]], sizes[-1] / sizes[0])}


def _ratios(few: dict[str, Any], many: dict[str, Any], times: float) -> dict[str, float]:
    """How many times as much a run costs among many: 1 where cost is linear, below it where a part is fixed."""
    return {key: round(many[key] / few[key] / times, 3) for key in few if few[key]}


if __name__ == "__main__":
    main()
