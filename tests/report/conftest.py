import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

# The records with a known truth that the analysis is tested on.
sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_records import Entry, contaminated, disproved, failed, run, sweep

from ampsweep.analysis.comparison import Comparison, compare
from ampsweep.record import HISTORY_NAME, find_records, history_line
from ampsweep.report.dashboard import Dashboard, arrange, curve_keys
from ampsweep.report.histories import read_histories
from ampsweep.report.panels import PANELS, Panel

GIB = 2**30


@pytest.fixture
def comparison() -> Comparison:
    """The four arms of the first experiment on a CPU: one faster, one unsupported, one cut short."""
    arms = [
        *sweep("fp32", [6.1, 6.0, 6.3], peak_mib=100.0, val_loss=[2.41, 2.43, 2.40], skipped=0, num_operators=430),
        *(failed("tf32", seed, "unsupported", "tf32 needs a CUDA device; this is a CPU.") for seed in range(3)),
        *sweep("amp_bf16", [4.0, 4.1, 4.05], peak_mib=70.0, val_loss=[2.412, 2.431, 2.404], skipped=0),
        *sweep(
            "amp_fp16",
            [71.0, 70.0, 73.0],
            peak_mib=110.0,
            skipped=[3, 0, 1],
            cut_short="trainer.max_seconds=20 passed after 17 of 40 steps",
        ),
        run("amp_fp16", 3, pair_key="older code", wandb={"url": "https://wandb.ai/team/ampsweep/runs/a1"}),
    ]
    return compare(arms, baseline="fp32", margin_pct=1.0)


def memory(arm: str, batch_size: int) -> dict[str, int]:
    """Bytes by category: half-precision arms hold half the activations and copies of the weights."""
    half = arm.startswith("amp")
    activations = (GIB // 8) * batch_size
    return {
        "parameters": GIB // 2,
        "gradients": GIB // 2,
        "optimizer_state": GIB,
        "activations": activations // 2 if half else activations,
        "autocast_weights": GIB // 4 if half else 0,
        "temporary": GIB // 8,
        "other": 512,
    }


def on_gpu(arm: str, seed: int, *, batch_size: int = 8, step_ms: float = 100.0, **more: Any) -> Entry:
    """A run on a GPU that measured everything, with a prediction made for it."""
    peak = memory(arm, batch_size)
    directory, record = run(
        arm,
        seed,
        step_ms=step_ms,
        peak_mib=sum(peak.values()) / 2**20,
        val_loss=2.0 + 0.01 * seed + (0.002 * seed if arm.startswith("amp") else 0.0),
        skipped=2 if arm == "amp_fp16" else None,
        facts={"batch_size": batch_size, "device": "cuda:0", "device_name": "a GPU"},
        config={"data": {"batch_size": batch_size}},
        memory={"peak_bytes": sum(peak.values()), "peak": peak},
        prediction={"peak": {category: round(1.01 * size) for category, size in peak.items()}},
        environment={"packages": {"torch": "2.13.0"}, "flags": {"matmul_fp32_precision": "ieee"}},
        **more,
    )
    if record.status == "completed":
        record.summary |= {f"memory/{category}_gib": size / GIB for category, size in peak.items()}
        record.summary |= {
            "memory/peak_reserved_gib": 1.1 * sum(peak.values()) / GIB,
            "memory/process_gib": 1.2 * sum(peak.values()) / GIB,
            "perf/samples_per_sec": 1000 * batch_size / step_ms,
            "device/utilization_pct": 95.0 + seed,
            "device/power_w": 400.0,
        }
    return directory, record


@pytest.fixture
def gpu_runs() -> list[Entry]:
    """Two batch sizes on a GPU, three seeds, and a run out of memory at the larger."""
    entries = []
    for batch_size in (8, 16):
        for seed in range(3):
            noise = 1 + 0.01 * seed
            entries += [
                on_gpu("fp32", seed, batch_size=batch_size, step_ms=100.0 * noise),
                on_gpu("amp_bf16", seed, batch_size=batch_size, step_ms=50.0 / noise),
            ]
        entries += [on_gpu("amp_fp16", seed, batch_size=batch_size, step_ms=52.0 + seed) for seed in range(2)]
    lost = failed("amp_fp16", 2, "oom", "CUDA out of memory. Tried to allocate 2.00 GiB", **like(entries[-1]))
    return [*entries, lost]


def like(entry: Entry) -> dict[str, Any]:
    """What makes a run one of the same workload as `entry`."""
    identity = entry[1].identity
    facts = {key: getattr(identity, key) for key in ("batch_size", "device", "device_name")}
    return {"facts": facts, "config": {"data": {"batch_size": identity.batch_size}}}


Write = Callable[[Sequence[Entry]], list[Entry]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes records with a history each below `tmp_path`, and reads them back."""

    def write_runs(entries: Sequence[Entry]) -> list[Entry]:
        for directory, record in entries:
            there = tmp_path / directory.name
            there.mkdir()
            record.write(there)
            (there / HISTORY_NAME).write_text("".join(history_line(row) for row in history(record.arm, record)))
        return find_records(tmp_path).records

    return write_runs


def history(arm: str, record: Any, num_rows: int = 8) -> list[dict[str, Any]]:
    """Falling losses; a diverged run's last one is NaN."""
    rows = []
    for index in range(1, num_rows + 1):
        row = {"step": 5 * index, "train/loss": 4 * math.exp(-index / 3) + 2 + 0.01 * record.identity.seed}
        row |= {"train/grad_norm": 1.0 / index, "perf/step_ms": 100.0}
        if arm == "amp_fp16":
            row |= {"amp/scale": 65536.0 / index, "amp/skipped_steps": float(index > 4)}
        rows.append(row)
    if record.status == "diverged":
        rows[-1]["train/loss"] = math.nan
    return rows


def dashboard_of(records: Sequence[Entry], directory: Path, panels: Sequence[Panel] = PANELS) -> Dashboard:
    """The dashboard of records, as the commands make it."""
    histories = read_histories(records, curve_keys(panels))
    comparison = compare(records, baseline="fp32", margin_pct=1.0, omissions=histories.omissions)
    return arrange(comparison, records, histories, directory, panels)


@pytest.fixture
def broken_runs() -> list[Entry]:
    """A run of every kind of trouble, beside three good ones of the baseline."""
    return [
        *sweep("fp32", [10.0, 10.1, 10.2]),
        failed("tf32", 0, "unsupported", "tf32 needs a GPU"),
        failed("amp_fp16", 0, "diverged", "the scale collapsed to 1e-08 at step 12"),
        failed("amp_fp16", 1, "oom", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        failed("amp_fp16", 2, "failed", "RuntimeError: the disk is full"),
        contaminated("amp_bf16", 0),
        disproved("amp_bf16", 1),
        run("amp_bf16", 2, cut_short="trainer.max_seconds=20 passed after 17 of 40 steps"),
        run("amp_bf16", 7),
    ]
