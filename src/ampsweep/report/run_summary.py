"""A few lines about one run, for the end of a single training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from ampsweep.analysis.arm_notes import ArmNote, without_effect
from ampsweep.analysis.float8_gain import float8_summary
from ampsweep.analysis.headroom import headroom_of
from ampsweep.analysis.rank_table import ranks_of_run
from ampsweep.analysis.runs import Run
from ampsweep.analysis.step_limits import step_limits
from ampsweep.metrics import AUTOCAST_PENALTY, CLIPPED
from ampsweep.record import RunRecord
from ampsweep.record.files import RecordError
from ampsweep.record.numerics import RunNumerics
from ampsweep.report.console import PLAIN_WIDTH, at_least, of_texts
from ampsweep.report.rank_tables import DTYPES, ranks_table
from ampsweep.report.sentences import float8
from ampsweep.report.sentences.arm_findings import step_limit
from ampsweep.report.sentences.compiling import compiled, remarks
from ampsweep.report.sentences.explaining import arm_note
from ampsweep.report.sentences.file_problems import leak
from ampsweep.report.sentences.headroom import summary_lines
from ampsweep.report.sentences.ranks import rank_line
from ampsweep.text import loss, milliseconds, num_bytes, number, plural, predicted_bytes, signed

_LABEL_WIDTH: Final = 12
_THROUGHPUT: Final = (("perf/tokens_per_sec", "tokens/s"), ("perf/samples_per_sec", "samples/s"))


def print_run_summary(directory: Path, record: RunRecord, console: Console) -> None:
    """Print the result of the run in `directory`; figures that were not measured have no line."""
    run = Run(directory, record)
    for label, text in _lines(run):
        console.print(Text(f"{label:<{_LABEL_WIDTH}}{text}"), soft_wrap=True)
    if (ranks := ranks_of_run(run)) is not None:
        with at_least(console, PLAIN_WIDTH):
            console.print(of_texts(ranks_table([(run.arm, ranks)], categories=False)))


def _lines(run: Run) -> Iterator[tuple[str, str]]:
    record = run.record
    reason = record.error or "; ".join(run.contradictions) or record.cut_short
    yield "run", f"{record.arm}, {record.identity.model}, seed {run.seed}"
    yield "status", f"{run.outcome}: {reason.strip()}" if reason and reason.strip() else run.outcome
    if (ranks := ranks_of_run(run)) is not None:
        yield "parallel", _parallel(run, len(ranks.rows))
        dtypes = ", ".join(f"{kind} {run.dtypes[key]}" for key, kind in DTYPES.items() if key in run.dtypes)
        if dtypes:
            yield "dtypes", dtypes
    if run.measured and run.contamination is not None:
        yield "warning", f"contaminated, its speed does not count: {run.contamination}"
    for limit in step_limits([run]):
        yield "limited by", step_limit(limit)
    if (leaked := run.leaked_bytes) is not None:
        yield "warning", f"{leak(leaked)}; if each does, memory grows beyond the peak told here"
    for kind in without_effect(run):
        yield "warning", arm_note(ArmNote(kind=kind, seeds=(run.seed,)))
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
        step = record.memory.step
        yield "peak memory", num_bytes(value) + ("" if step is None else f" (step {step})")
    elif (why := record.absent.get("memory/peak_allocated_gib")) is not None:
        yield "peak memory", f"none: {why}"
    if (value := run.predicted_bytes) is not None:
        yield "predicted", predicted_bytes(value, run.prediction_error_pct)
    elif (value := run.eager_predicted_bytes) is not None:
        yield "predicted", f"{num_bytes(value)} for the eager step; this one was compiled"
    if record.proof.traced == "compiled" or record.compilation.num_graphs:
        yield "compiled", compiled(record.compilation)
    for line in remarks(record.compilation):
        yield "", line
    if (value := run.figure("amp/skipped_steps")) is not None:
        yield "skipped", f"{value:.0f} steps"
    if (value := run.figure(CLIPPED)) is not None:
        yield "clipped", f"in {value:.0f} % of the logged steps"
    if (summary := float8_summary(record.proof.float8)) is not None:
        yield "float8", float8.layers(summary)
        if summary.gain is not None:
            yield "", float8.gain(summary.gain, summary.recipe)
    for line in _headroom(run.directory):
        yield "headroom", line
    if ranks is not None:
        yield "ranks", rank_line(ranks)
    yield "directory", str(run.directory)
    if run.tracked_at is not None:
        yield "W&B", run.tracked_at


def _headroom(directory: Path) -> list[str]:
    """Two lines at most on what the run's numerics tell of other formats; none if it did not look at them."""
    try:
        numerics = RunNumerics.read(directory)
    except FileNotFoundError:
        return []
    except RecordError as error:
        return [str(error)]
    return summary_lines(headroom_of(numerics, numerics.scale))


def _parallel(run: Run, num_ranks: int) -> str:
    identity = run.record.identity
    samples = "" if identity.global_batch_size is None else f", {identity.global_batch_size} samples a step"
    return f"{identity.parallel}, {plural(num_ranks, 'rank')}{samples}"


def _throughput(run: Run) -> str:
    for key, unit in _THROUGHPUT:
        if (value := run.figure(key)) is not None:
            return f" ({number(value)} {unit})"
    return ""
