"""The summary of one run as a document, for the end of a single training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ampsweep.analysis.figure_keys import PEAK_MEMORY
from ampsweep.analysis.float8_layers import float8_summary
from ampsweep.analysis.headroom import headroom_lines, headroom_of
from ampsweep.analysis.rank_table import ranks_of_run
from ampsweep.analysis.recorded import compiled, compiled_remarks
from ampsweep.analysis.run_findings import Leaks, without_effect
from ampsweep.analysis.runs import STEP_MS, Run
from ampsweep.analysis.step_limits import step_limits
from ampsweep.metrics import AUTOCAST_PENALTY, CLIPPED
from ampsweep.records import RunRecord
from ampsweep.records.files import RecordError
from ampsweep.records.numerics import RunNumerics
from ampsweep.report.document import Document, Section
from ampsweep.report.palette import arm_styles
from ampsweep.report.rank_tables import ranks_table
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.text import loss, milliseconds, num_bytes, number, plural, predicted_bytes, signed

_THROUGHPUT: Final = (("perf/tokens_per_sec", "tokens/s"), ("perf/samples_per_sec", "samples/s"))


def run_document(directory: Path, record: RunRecord) -> Document:
    """The summary of the run in `directory`; figures that were not measured have no line."""
    run = Run(directory, record)
    lines = tuple(Row((Cell(label), Cell(text))) for label, text in _lines(run))
    blocks = [Table(key="run", columns=(Column("fact"), Column("value")), rows=lines, kind="labels")]
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
        left = Leaks(seeds=(run.seed,), cause=num_bytes(leaked)).clause
        yield "warning", f"{left}; if each does, memory grows beyond the peak given here"
    for found in without_effect(record):
        yield "warning", found.sentence
    if (value := run.figure("val/loss")) is not None:
        accuracy = run.figure("val/accuracy")
        is_best = record.best is not None and record.config["trainer"].get("patience") is not None
        of_best = f" (best, step {record.best.step})" if is_best and record.best is not None else ""
        yield "val loss", loss(value) + ("" if accuracy is None else f", accuracy {accuracy:.4f}") + of_best
    if (value := run.figure(AUTOCAST_PENALTY)) is not None:
        yield "autocast", f"{signed(value, 2)} val loss, against full precision"
    elif (why := record.absent.get(AUTOCAST_PENALTY)) is not None:
        yield "autocast", f"no penalty: {why}"
    if (value := run.figure(STEP_MS)) is not None:
        yield "step time", milliseconds(value) + _throughput(run)
    elif (why := record.absent.get(STEP_MS)) is not None:
        yield "step time", f"none: {why}"
    if (value := run.num_bytes(PEAK_MEMORY)) is not None:
        step = record.memory.step
        yield "peak memory", num_bytes(value) + ("" if step is None else f" (step {step})")
    elif (why := record.absent.get(PEAK_MEMORY)) is not None:
        yield "peak memory", f"none: {why}"
    if (value := run.predicted_bytes) is not None:
        yield "predicted", predicted_bytes(value, run.prediction_error_pct)
    elif (value := run.eager_predicted_bytes) is not None:
        yield "predicted", f"{num_bytes(value)} for the eager step; this one was compiled"
    if record.proof.traced == "compiled" or record.compilation.num_graphs:
        yield "compiled", compiled(record.compilation)
    for line in compiled_remarks(record.compilation):
        yield "", line
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
    """At most two lines on other formats, from the run's numerics if it has any."""
    try:
        numerics = RunNumerics.read(directory)
    except FileNotFoundError:
        return []
    except RecordError as error:
        return [str(error)]
    return headroom_lines(headroom_of(numerics))


def _throughput(run: Run) -> str:
    known = (f" ({number(value)} {unit})" for key, unit in _THROUGHPUT if (value := run.figure(key)) is not None)
    return next(known, "")
