"""Records for the reports' tests, and documents made of them."""

import io
import math
import sys
from pathlib import Path

# The records with a known truth that the analysis is tested on.
sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_records import contaminated, disproved, failed, run, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.records import HISTORY_NAME, find_records, history_line
from ampsweep.report.compare import Compared
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.console import Terminal, show
from ampsweep.report.document import tables
from ampsweep.report.histories import read_histories
from ampsweep.report.panels import PANELS, curve_keys

GIB = 2**30


def memory(arm, batch_size):
    """Bytes by category: half-precision arms hold half the activations, and copies of the weights."""
    half = arm.startswith("amp")
    activations = GIB // 8 * batch_size // (2 if half else 1)
    of_step = {"activations": activations, "autocast_weights": GIB // 4 if half else 0, "temporary": GIB // 8}
    return {"parameters": GIB // 2, "gradients": GIB // 2, "optimizer_state": GIB, **of_step, "other": 512}


def on_gpu(arm, seed, *, batch_size=8, step_ms=100.0, **more):
    """A run on a GPU with every measurement, and a prediction of its memory."""
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
    record.summary |= {f"memory/{category}_gib": size / GIB for category, size in peak.items()}
    record.summary |= {"device/utilization_pct": 95.0 + seed, "device/power_w": 400.0}
    record.summary["perf/samples_per_sec"] = 1000 * batch_size / step_ms
    return directory, record


def like(entry):
    """The settings that make a run one of the same workload as `entry`."""
    identity = entry[1].identity
    facts = {key: getattr(identity, key) for key in ("batch_size", "device", "device_name")}
    return {"facts": facts, "config": {"data": {"batch_size": identity.batch_size}}}


def gpu_runs():
    """Two batch sizes on a GPU, three seeds, and a run out of memory at the larger."""
    entries = []
    for batch_size in (8, 16):
        for seed in range(3):
            noise = 1 + 0.01 * seed
            entries.append(on_gpu("fp32", seed, batch_size=batch_size, step_ms=100.0 * noise))
            entries.append(on_gpu("amp_bf16", seed, batch_size=batch_size, step_ms=50.0 / noise))
        entries += [on_gpu("amp_fp16", seed, batch_size=batch_size, step_ms=52.0 + seed) for seed in range(2)]
    lost = failed("amp_fp16", 2, "oom", "CUDA out of memory. Tried to allocate 2.00 GiB", **like(entries[-1]))
    return [*entries, lost]


def cpu_runs():
    """Four arms on a CPU: one faster, one unsupported, one cut short."""
    cut = "trainer.max_seconds=20 passed after 17 of 40 steps"
    return [
        *sweep("fp32", [6.1, 6.0, 6.3], peak_mib=100.0, val_loss=[2.41, 2.43, 2.40], skipped=0, accuracy=0.97),
        *(failed("tf32", seed, "unsupported", "tf32 needs a CUDA device; this is a CPU.") for seed in range(3)),
        *sweep("amp_bf16", [4.0, 4.1, 4.05], peak_mib=70.0, val_loss=[2.412, 2.431, 2.404], skipped=0, accuracy=0.97),
        *sweep("amp_fp16", [71.0, 70.0, 73.0], peak_mib=110.0, skipped=[3, 0, 1], cut_short=cut),
        run("amp_fp16", 3, pair_key="older code", wandb={"url": "https://wandb.ai/team/ampsweep/runs/a1"}),
    ]


def broken_runs():
    """A run with each kind of trouble, and three good ones of the baseline."""
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


def front_runs():
    """Three arms, of which two are on the Pareto front; Adam's settings make a pitfall of the third."""
    wide = dict.fromkeys(("compute", "parameters", "gradients", "optimizer_state"), "float32")
    adam = {"optimizer": {"weight_decay": 0.0, "beta2": 0.999}}
    losses, worse = [2.00, 2.02, 1.98], [2.1, 2.12, 2.08]
    half, mixed = dict.fromkeys(wide, "bfloat16"), wide | {"compute": "bfloat16"}
    return [
        *sweep("fp32", [150.0, 151.0, 149.0], val_loss=losses, dtypes=wide, config=adam),
        *sweep("amp_bf16", [90.0, 91.0, 89.0], val_loss=losses, dtypes=mixed, config=adam, peak_mib=800.0),
        *sweep("pure_bf16", [75.0, 76.0, 74.0], val_loss=worse, dtypes=half, config=adam, peak_mib=500.0),
    ]


def history(arm, record, num_rows=8):
    """Falling losses; a diverged run's last loss is NaN."""
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


def write_runs(entries, directory):
    """Write records with a history each below a directory, and read them back."""
    for path, record in entries:
        there = directory / path.name
        there.mkdir()
        record.write(there)
        (there / HISTORY_NAME).write_text("".join(map(history_line, history(record.arm, record))))
    return find_records(directory).records


def document_of(records, directory=None, panels=PANELS):
    histories = read_histories(records, curve_keys(panels))
    comparison = compare(records, baseline="fp32", margin_pct=1.0, file_problems=histories.omissions)
    return comparison_document(Compared(comparison, records, histories), directory, panels)


def section_of(document, key):
    (found,) = (section for section in document.sections if section.key == key)
    return found


def rows(document, key):
    """The rows of a table of the document by header, a cell with its detail in brackets."""
    (table,) = (table.shown() for table in tables(document) if table.key == key)
    texts = [[f"{cell.text} ({cell.detail})" if cell.detail else cell.text for cell in row.cells] for row in table.rows]
    return [dict(zip((column.title for column in table.columns), row, strict=True)) for row in texts]


def printed(document, width=200, *, is_terminal=None):
    """What a terminal of this width, or a log file, shows."""
    stream = io.StringIO()
    show(document, Terminal(file=stream, width=width, force_terminal=is_terminal, color_system=None))
    return stream.getvalue()
