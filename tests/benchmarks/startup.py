"""How long until a training takes its first step: `python tests/benchmarks/startup.py`, see README.md.

JSON goes to stdout, progress to stderr.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loops import ampsweep_overrides
from rounds import in_rounds, machine, run, spread
from workload import NUM_STAMPED_STEPS, SIZES

VARIANTS = ("ampsweep", "ampsweep -m")
STAMPS = ("first", "last")
NUM_RUNS = 5
"""Runs of the multirun."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    results = in_rounds(arguments.rounds, VARIANTS, _measure)
    rows = {name: {key: spread([one[key] for one in of]) for key in of[0]} for name, of in results.items()}
    print(json.dumps({"machine": machine([os.getloadavg()[0]]), "variants": rows, "rounds": results}, indent=1))


def _measure(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        os.environ["STAMPS"] = temporary
        command = [sys.executable, *_script(name, directory)]
        began_s = time.time()
        run(command, directory)
        took_s = time.time() - began_s
        first, last = (sorted(float(path.read_text()) for path in directory.glob(f"{name}-*")) for name in STAMPS)
        figures = {"to_first_step_s": first[0] - began_s, "all_s": took_s}
        if name == "ampsweep -m":
            assert len(first) == len(last) == NUM_RUNS
            begun = sorted(path.stat().st_mtime for path in directory.glob("outputs/*/*/*/.hydra/config.yaml"))
            for since, stamps in (("hand_over", begun[1:]), ("last_step", last[:-1])):
                waits = [step - stamp for stamp, step in zip(stamps, first[1:], strict=True)]
                figures[f"further_run_from_{since}_s"] = spread(waits)["median"]
        return figures


def _script(name: str, directory: Path) -> list[str]:
    given = dict(line.split("=", 1) for line in ampsweep_overrides(SIZES["small"], log_every=10))
    given |= {"model._target_": "workload.StampedNet", "trainer.steps": NUM_STAMPED_STEPS}
    given["output_dir"] = directory / "outputs"
    if name == "ampsweep -m":
        given["seed"] = ",".join(map(str, range(NUM_RUNS)))
    flags = ["-m"] if name == "ampsweep -m" else []
    return [str(Path(__file__).parents[2] / "train.py"), *(f"{key}={value}" for key, value in given.items()), *flags]


if __name__ == "__main__":
    main()
