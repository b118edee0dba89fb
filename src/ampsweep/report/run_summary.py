"""A few lines about one run, for the end of a single training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from ampsweep.analysis.runs import Run
from ampsweep.metrics import AUTOCAST_PENALTY
from ampsweep.record import RunRecord
from ampsweep.report.sentences.file_problems import leak
from ampsweep.text import loss, milliseconds, num_bytes, number, predicted_bytes, signed

_LABEL_WIDTH: Final = 12
_THROUGHPUT: Final = (("perf/tokens_per_sec", "tokens/s"), ("perf/samples_per_sec", "samples/s"))


def print_run_summary(directory: Path, record: RunRecord, console: Console) -> None:
    """Print the result of the run in `directory`; figures that were not measured have no line."""
    for label, text in _lines(Run(directory, record)):
        console.print(Text(f"{label:<{_LABEL_WIDTH}}{text}"), soft_wrap=True)


def _lines(run: Run) -> Iterator[tuple[str, str]]:
    record = run.record
    reason = record.error or "; ".join(run.contradictions) or record.cut_short
    yield "run", f"{record.arm}, {record.identity.model}, seed {run.seed}"
    yield "status", f"{run.outcome}: {reason.strip()}" if reason and reason.strip() else run.outcome
    if run.measured and run.contamination is not None:
        yield "warning", f"contaminated, its speed does not count: {run.contamination}"
    if (leaked := run.leaked_bytes) is not None:
        yield "warning", f"{leak(leaked)}; if each does, memory grows beyond the peak told here"
    if (value := run.figure("val/loss")) is not None:
        accuracy = run.figure("val/accuracy")
        yield "val loss", loss(value) + ("" if accuracy is None else f", accuracy {accuracy:.4f}")
    if (value := run.figure(AUTOCAST_PENALTY)) is not None:
        yield "autocast", f"{signed(value, 2)} val loss, against full precision"
    elif (why := record.absent.get(AUTOCAST_PENALTY)) is not None:
        yield "autocast", f"no penalty: {why}"
    if (value := run.figure("perf/step_ms")) is not None:
        yield "step time", milliseconds(value) + _throughput(run)
    elif (why := record.absent.get("perf/step_ms")) is not None:
        yield "step time", f"none: {why}"
    if (value := run.num_bytes("memory/peak_allocated_gib")) is not None:
        yield "peak memory", num_bytes(value)
    if (value := run.predicted_bytes) is not None:
        yield "predicted", predicted_bytes(value, run.prediction_error_pct)
    if (value := run.figure("amp/skipped_steps")) is not None:
        yield "skipped", f"{value:.0f} steps"
    yield "directory", str(run.directory)
    if run.tracked_at is not None:
        yield "W&B", run.tracked_at


def _throughput(run: Run) -> str:
    for key, unit in _THROUGHPUT:
        if (value := run.figure(key)) is not None:
            return f" ({number(value)} {unit})"
    return ""
