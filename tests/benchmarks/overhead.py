"""What a training step costs beyond that of a bare loop: `python tests/benchmarks/overhead.py`, see README.md.

Every training is a process of its own; JSON goes to stdout, progress to stderr.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rounds import against_bare, in_rounds, machine, run, spread

VARIANTS = {
    "bare": (None, "bare", {}),
    "bare + wandb.log each step": (None, "bare_wandb", {}),
    "ampsweep, log_every=10": (None, "ampsweep", {"log_every": 10}),
    "ampsweep, log_every=1": (None, "ampsweep", {"log_every": 1}),
    "Lightning Trainer + WandbLogger": ("lightning", "lightning", {}),
    "HF Trainer, report_to=wandb": ("transformers", "huggingface", {}),
}
"""The package that each needs beside the suite's own, its function in `loops`, and that one's options."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("small", "large"), default="small", help="a step of 0.2 ms or of 5 ms")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--worker", choices=list(VARIANTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        _work(arguments.worker, arguments.size)
        return
    wanted = {name: VARIANTS[name][0] for name in ["bare", *arguments.variants]}
    names = [name for name, package in wanted.items() if package is None or find_spec(package)]
    print(f"without {', '.join(wanted.keys() - names) or 'none'}: see requirements.txt", file=sys.stderr)
    results = in_rounds(arguments.rounds, names, functools.partial(_measure, size=arguments.size))
    print(json.dumps(_report(arguments.size, results), indent=1))


def _measure(name: str, size: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        done = run([sys.executable, __file__, "--worker", name, "--size", size], Path(directory))
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _work(name: str, size_name: str) -> None:
    """In the measured process: train, and print what it took."""
    import loops
    import torch
    import workload

    torch.set_num_threads(1)
    _, function, options = VARIANTS[name]
    size, directory = workload.SIZES[size_name], Path.cwd()
    loss = getattr(loops, function)(size, directory, **options)
    times_us = workload.block_times_us(size)
    result = {"step_us": statistics.median(times_us), "loss": loss.hex()}
    print(json.dumps(result | loops.own_estimate(directory)), flush=True)
    sys.stderr.flush()
    os._exit(0)  # what frameworks do at exit is not measured, and takes seconds


def _report(size: str, results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    times = {name: [one["step_us"] for one in samples] for name, samples in results.items()}
    rows: dict[str, dict[str, Any]] = {}
    for name, samples in results.items():
        rows[name] = against_bare(times[name], times["bare"])
        rows[name]["same_loss_as_bare"] = [one["loss"] for one in samples] == [one["loss"] for one in results["bare"]]
        if name.startswith("ampsweep"):
            pairs = zip(times[name], times["bare"], strict=True)
            rows[name]["true_overhead_pct"] = spread([100 * (1 - bare_us / own_us) for own_us, bare_us in pairs])
            rows[name]["reported_overhead_pct"] = spread([one["reported_overhead_pct"] for one in samples])
            rows[name]["num_metrics"] = min(one["num_metrics"] for one in samples)
    return {"size": size, "machine": machine([os.getloadavg()[0]]), "variants": rows, "rounds": results}


if __name__ == "__main__":
    main()
