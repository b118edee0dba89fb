"""Measurements in fresh processes, in shuffled rounds, and what is said of them."""

import importlib.metadata
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("ampsweep", "torch", "wandb", "hydra-core", "lightning", "accelerate", "transformers")


def in_rounds(
    num_rounds: int, names: Sequence[str], measure: Callable[[str], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Measure every name once a round, in a new order each round, so that drift of the machine falls on all alike."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(num_rounds):
        for name in random.sample(names, len(names)):
            result = measure(name) | {"load": os.getloadavg()[0]}
            results[name].append(result)
            print(f"round {number + 1} of {num_rounds}: {name} {json.dumps(result)}", file=sys.stderr)
    return results


def environment(directory: Path) -> dict[str, str]:
    """Of every measured process: one thread, W&B offline and quiet, nobody logged in."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    own |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(directory)}
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), own.get("PYTHONPATH")]))
    return own | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(command: Sequence[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in `directory`; what it prints is shown if it fails."""
    where = {"cwd": directory, "env": environment(directory)}
    done = subprocess.run(command, **where, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done


def timed(command: Sequence[str], directory: Path) -> dict[str, float]:
    """Seconds and peak resident memory of a command on Linux, its process's start included."""
    began_s, peak_kib = time.perf_counter(), 0
    process = subprocess.Popen(command, cwd=directory, env=environment(directory), stdout=subprocess.DEVNULL)
    while process.poll() is None:  # not by getrusage: its peak is at least that of the process that starts another
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8"))
        peak_kib = max(peak_kib, int(found[1]) if found else 0)
        time.sleep(0.01)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed")
    return {"seconds": time.perf_counter() - began_s, "peak_rss_mib": peak_kib / 1024}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles (those of one value are itself)."""
    q1, median, q3 = statistics.quantiles([*values] * (1 if len(values) > 1 else 2), n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def against_bare(times_us: Sequence[float], bare_us: Sequence[float]) -> dict[str, dict[str, float]]:
    """Of a variant: differences and ratios are taken within a round, and their median over the rounds."""
    pairs = list(zip(times_us, bare_us, strict=True))
    return {
        "step_us": spread(times_us),
        "above_bare_us": spread([one - other for one, other in pairs]),
        "ratio": spread([one / other for one, other in pairs]),
    }


def machine(loads: Sequence[float]) -> dict[str, Any]:
    """What the figures depend on; `loads` are the machine's one-minute load averages during them."""
    installed = {one.name.lower(): one.version for one in importlib.metadata.distributions()}
    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.*)", cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else "")
    return {
        "cpu": cpu[1] if cpu else platform.processor(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: installed[name] for name in PACKAGES if name in installed},
        "load": spread(loads),
    }
