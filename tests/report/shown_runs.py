"""Records for the reports' tests, with all that a GPU measures, and their dashboards."""

import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The records with a known truth that the analysis is tested on.
sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_records import Entry, run

from ampsweep.analysis.comparison import compare
from ampsweep.report.compare import Compared
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.console import show
from ampsweep.report.dashboard import curve_keys
from ampsweep.report.document import Document, tables
from ampsweep.report.histories import read_histories
from ampsweep.report.panels import PANELS, Panel
from ampsweep.report.terminal import Terminal

GIB = 2**30


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


def like(entry: Entry) -> dict[str, Any]:
    """What makes a run one of the same workload as `entry`."""
    identity = entry[1].identity
    facts = {key: getattr(identity, key) for key in ("batch_size", "device", "device_name")}
    return {"facts": facts, "config": {"data": {"batch_size": identity.batch_size}}}


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


def compared_of(records: Sequence[Entry], panels: Sequence[Panel] = PANELS, *, baseline: str = "fp32") -> Compared:
    histories = read_histories(records, curve_keys(panels))
    comparison = compare(records, baseline=baseline, margin_pct=1.0, file_problems=histories.omissions)
    return Compared(comparison, records, histories)


def document_of(records: Sequence[Entry], directory: Path | None = None, panels: Sequence[Panel] = PANELS) -> Document:
    """The document of a comparison, as the commands make it."""
    return comparison_document(compared_of(records, panels), directory, panels)


def rows(document: Document, key: str) -> list[dict[str, str]]:
    """The rows of a table of the document by header, a cell with its detail in brackets."""
    (table,) = (one.shown() for one in tables(document) if one.key == key)
    titles = [column.title for column in table.columns]
    texts = [[f"{cell.text} ({cell.detail})" if cell.detail else cell.text for cell in row.cells] for row in table.rows]
    return [dict(zip(titles, row, strict=True)) for row in texts]


def printed(document: Document, width: int = 200) -> str:
    """What a terminal of this width shows, spaces collapsed."""
    stream = io.StringIO()
    show(document, Terminal(file=stream, width=width))
    return " ".join(stream.getvalue().split())
