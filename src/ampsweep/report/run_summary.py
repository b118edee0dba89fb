"""The summary of one run as a document, for the end of a single training."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ampsweep.analysis.figure_keys import PEAK_MEMORY, VAL_LOSS
from ampsweep.analysis.headroom import headroom_of
from ampsweep.analysis.rank_table import ranks_of_run
from ampsweep.analysis.run_findings import Leaks, findings_of_step, float8_summary
from ampsweep.analysis.runs import STEP_MS, Run
from ampsweep.analysis.step_limits import step_limits
from ampsweep.metrics import AUTOCAST_PENALTY, CLIPPED
from ampsweep.records import RunRecord
from ampsweep.records.files import RecordError
from ampsweep.records.numerics import RunNumerics
from ampsweep.report.document import Document, Section
from ampsweep.report.palette import arm_styles
from ampsweep.report.rank_tables import ranks_table
from ampsweep.report.tables import text_table
from ampsweep.text import GIB, loss, milliseconds, num_bytes, number, plural, signed, with_error

_THROUGHPUT: Final = (("perf/tokens_per_sec", "tokens/s"), ("perf/samples_per_sec", "samples/s"))


def run_document(directory: Path, record: RunRecord) -> Document:
    """The summary of the run in `directory`; figures that were not measured have no line."""
    run = Run(directory, record)
    blocks = [replace(text_table("run", ("fact", "value"), _lines(run)), kind="labels")]
    if (ranks := ranks_of_run(run)) is not None:
        blocks.append(ranks_table([(run.arm, ranks)]))
    return Document(
        title=", ".join(filter(None, (record.arm, record.identity.model, f"seed {run.seed}"))),
        sections=(Section(blocks=tuple(blocks)),),
        arms=arm_styles([run.arm]),
        data=record.as_json(),
    )


def _lines(run: Run) -> Iterator[tuple[str, str]]:
    record = run.record
    reason = record.error or "; ".join(run.contradictions) or record.cut_short
    yield "status", f"{run.outcome}: {reason.strip()}" if reason and reason.strip() else run.outcome
    if (ranks := ranks_of_run(run)) is not None:
        batch = record.identity.global_batch_size
        samples = "" if batch is None else f", {batch} samples a step"
        yield "parallel", f"{record.identity.parallel}, {plural(len(ranks.rows), 'rank')}{samples}"
        if run.dtypes:
            yield "dtypes", ", ".join(f"{kind.replace('_', ' ')} {dtype}" for kind, dtype in run.dtypes.items())
    if run.measured and run.contamination is not None:
        yield "warning", f"contaminated, its speed does not count: {run.contamination}"
    for limit in step_limits([run]):
        yield "limited by", limit.sentence
    if (leaked := run.leaked_bytes) is not None:
        left = Leaks(seeds=(run.seed,), cause=num_bytes(leaked)).why
        yield "warning", f"{left}; if each does, memory grows beyond the peak given here"
    for found in findings_of_step(record):
        yield "warning", found.why
    accuracy = run.figure("val/accuracy")
    beside_loss = "" if accuracy is None else f", accuracy {accuracy:.4f}"
    if record.best is not None and record.config["trainer"].get("patience") is not None:
        beside_loss += f" (best, step {record.best.step})"
    of_step = "" if record.memory.step is None else f" (step {record.memory.step})"
    figures: Sequence[tuple[str, str, Callable[[float], str]]] = (
        ("val loss", VAL_LOSS, lambda value: loss(value) + beside_loss),
        ("autocast", AUTOCAST_PENALTY, lambda value: f"{signed(value, 2)} val loss, against full precision"),
        ("step time", STEP_MS, lambda value: milliseconds(value) + _throughput(run) + _beside_predicted(run)),
        ("peak memory", PEAK_MEMORY, lambda value: num_bytes(value * GIB) + of_step),
    )
    for label, key, text in figures:
        if (value := run.figure(key)) is not None:
            yield label, text(value)
        elif (why := record.absent.get(key)) is not None:
            yield label, f"{'no penalty' if key == AUTOCAST_PENALTY else 'none'}: {why}"
    if (value := run.predicted_bytes) is not None:
        yield "predicted", with_error(num_bytes(value), run.prediction_error_pct)
    elif (value := run.eager_predicted_bytes) is not None:
        yield "predicted", f"{num_bytes(value)} for the eager step; this one was compiled"
    if graphs := record.compilation.num_graphs:
        yield "compiled", f"{plural(graphs, 'graph')} in {number(record.compilation.seconds or 0.0)} s"
    if (value := run.figure("amp/skipped_steps")) is not None:
        yield "skipped", f"{value:.0f} steps"
    if (value := run.figure(CLIPPED)) is not None:
        yield "clipped", f"in {value:.0f} % of the logged steps"
    if (summary := float8_summary(record.proof.float8)) is not None:
        yield "float8", summary.sentence
    for line in _headroom(run.directory):
        yield "headroom", line
    if ranks is not None:
        yield "ranks", ranks.sentence
    for kept in record.weights:
        yield "weights", f"{run.directory / kept.file} (step {kept.step})"
    yield "directory", str(run.directory)
    if record.status == "diverged":
        yield "cause", f"`ampsweep doctor {run.directory}` looks for it"
    if run.tracked_at is not None:
        yield "W&B", run.tracked_at


def _headroom(directory: Path) -> list[str]:
    """A line on each low-precision format, from the run's numerics if it has any."""
    try:
        numerics = RunNumerics.read(directory)
    except FileNotFoundError:
        return []
    except RecordError as error:
        return [str(error)]
    return [headroom.sentence for headroom in headroom_of(numerics).values()]


def _beside_predicted(run: Run) -> str:
    of = run.record.prediction
    if of is None or of.step_ms is None or of.step_ms_low is None or of.step_ms_high is None:
        return ""
    ends = f"{milliseconds(of.step_ms_low)} to {milliseconds(of.step_ms_high)} nine times of ten"
    said = f"; predicted {with_error(milliseconds(of.step_ms), of.step_error_pct, 0)}, {ends}"
    return said if of.least_ms is None else f"{said}; at least {milliseconds(of.least_ms)} on this device"


def _throughput(run: Run) -> str:
    known = (f" ({number(value)} {unit})" for key, unit in _THROUGHPUT if (value := run.figure(key)) is not None)
    return next(known, "")
