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

from rounds import in_rounds, machine, run, runnable, spread
from startup_stamps import NUM_STEPS

HERE = Path(__file__).parent
VARIANTS: dict[str, str | None] = {
    "Hydra + wandb + bare loop": None,
    "Hydra + Lightning Trainer + WandbLogger": "lightning",
    "ampsweep": None,
    "ampsweep -m": None,
}
"""The package that each needs beside the suite's own."""

NUM_RUNS = 5
"""Runs of the multirun."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    arguments = parser.parse_args()
    names = runnable({name: VARIANTS[name] for name in arguments.variants})
    results = in_rounds(arguments.rounds, names, _measure)
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
        figures = {"to_first_step_s": first[0] - began_s}
        if name != "ampsweep -m":
            return figures | {"all_s": took_s}
        assert len(first) == len(last) == NUM_RUNS
        handed_over = sorted(path.stat().st_mtime for path in directory.glob("outputs/*/*/*/.hydra/config.yaml"))
        waits = [step - job for step, job in zip(first[1:], handed_over[1:], strict=True)]
        gaps = [step - before for before, step in zip(last, first[1:], strict=False)]
        return figures | {
            "further_run_from_hand_over_s": spread(waits)["median"],
            "further_run_from_last_step_s": spread(gaps)["median"],
            "all_s": took_s,
        }


def _script(name: str, directory: Path) -> list[str]:
    if name == "Hydra + wandb + bare loop":
        return [str(HERE / "startup_bare.py"), f"hydra.run.dir={directory}"]
    if name == "Hydra + Lightning Trainer + WandbLogger":
        return [str(HERE / "startup_lightning.py"), f"hydra.run.dir={directory}"]
    from loops import ampsweep_overrides
    from workload import SIZES

    own = ("model._target_=startup_stamps.StampedNet", f"trainer.steps={NUM_STEPS}", f"output_dir={directory}/outputs")
    others = [line for line in ampsweep_overrides(SIZES["small"], log_every=10) if _key(line) not in map(_key, own)]
    sweep = ["-m", "seed=" + ",".join(map(str, range(NUM_RUNS)))] if name == "ampsweep -m" else []
    overrides = [line for line in others if not (sweep and _key(line) == "seed")]
    return [str(HERE.parents[1] / "train.py"), *sweep, *overrides, *own]


def _key(override: str) -> str:
    return override.partition("=")[0]


def _stamps(directory: Path, name: str) -> list[float]:
    return sorted(float(path.read_text(encoding="ascii")) for path in directory.glob(f"{name}-*"))


if __name__ == "__main__":
    main()
