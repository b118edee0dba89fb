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
from startup_stamps import NUM_STEPS
from workload import SIZES

VARIANTS = ("ampsweep", "ampsweep -m")
NUM_RUNS = 5
"""Runs of the multirun."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    results = in_rounds(arguments.rounds, VARIANTS, _measure)
    rows = {
        name: {key: spread([one[key] for one in samples]) for key in samples[0] if key != "load"}
        for name, samples in results.items()
    }
    loads = [one["load"] for samples in results.values() for one in samples]
    print(json.dumps({"machine": machine(loads), "variants": rows, "rounds": results}, indent=1))


def _measure(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        os.environ["STAMPS"] = temporary
        command = [sys.executable, *_script(name, directory)]
        began_s = time.time()
        run(command, directory)
        took_s = time.time() - began_s
        first, last = _stamps(directory, "first"), _stamps(directory, "last")
        figures = {"to_first_step_s": first[0] - began_s, "all_s": took_s}
        if name == "ampsweep -m":
            assert len(first) == len(last) == NUM_RUNS
            begun = sorted(path.stat().st_mtime for path in directory.glob("outputs/*/*/*/.hydra/config.yaml"))
            for since, stamps in (("hand_over", begun[1:]), ("last_step", last[:-1])):
                waits = [step - stamp for stamp, step in zip(stamps, first[1:], strict=True)]
                figures[f"further_run_from_{since}_s"] = spread(waits)["median"]
        return figures


def _script(name: str, directory: Path) -> list[str]:
    own = ["model._target_=startup_stamps.StampedNet", f"trainer.steps={NUM_STEPS}", f"output_dir={directory}/outputs"]
    if name == "ampsweep -m":
        own += ["seed=" + ",".join(map(str, range(NUM_RUNS))), "-m"]
    replaced = {line.partition("=")[0] for line in own}
    others = ampsweep_overrides(SIZES["small"], log_every=10)
    return [
        str(Path(__file__).parents[2] / "train.py"),
        *(line for line in others if line.partition("=")[0] not in replaced),
        *own,
    ]


def _stamps(directory: Path, name: str) -> list[float]:
    return sorted(float(path.read_text(encoding="ascii")) for path in directory.glob(f"{name}-*"))


if __name__ == "__main__":
    main()
