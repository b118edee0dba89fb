"""Lines of the display about current and ended runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.text import Text

from ampsweep.analysis.runs import Run
from ampsweep.records import RunRecord
from ampsweep.records.batch_search import LARGEST_BATCH
from ampsweep.report.palette import arm_colour
from ampsweep.run.messages import Progress
from ampsweep.sweep.plan import Plan, PlannedRun
from ampsweep.text import GIB, duration, first_line, loss, milliseconds, num_bytes, plural

_GAP: Final = "  "
_STYLES: Final = {"completed": "green", "failed": "bold red", "interrupted": "bold"}
_ODD: Final = "yellow"  # colour of the other outcomes


@dataclass(frozen=True)
class LinePart:
    """Words of a line. Without room for all, the parts of the highest `rank` are dropped first."""

    text: str
    rank: int = 0
    style: str = ""


def running_line(
    number: str, run: PlannedRun, doing: Progress | str, left_s: float | None, plan: Plan, width: int
) -> Text:
    """The line of the current run, with its latest progress or the name of its phase."""
    parts = [*_head(number, run, plan)]
    if isinstance(doing, str):
        return fitted([*parts, LinePart(doing, style="dim")], width)
    step = f"{doing.step:>{len(str(doing.num_steps))}}/{doing.num_steps}"
    parts.append(LinePart(f"step {step}", 1))
    if doing.loss is not None:
        parts.append(LinePart(f"loss {loss(doing.loss)}", 3))
    if doing.scale is not None:
        parts.append(LinePart(f"scale {doing.scale:.10g}", 5))
    if doing.peak_memory_gib is not None:
        parts.append(LinePart(f"peak {num_bytes(doing.peak_memory_gib * GIB)}", 4))
    if doing.step == doing.num_steps:
        parts.append(LinePart("finishing", 2, "dim"))
    elif left_s is not None:
        parts.append(LinePart(f"{duration(left_s, whole=True)} left", 2))
    return fitted(parts, width)


def ended_line(
    number: str, run: PlannedRun, record: RunRecord, seconds: float | None, plan: Plan, width: int | None
) -> Text:
    """The line of a run that has ended; `width=None` is unlimited."""
    ended = Run(Path(), record)
    style = _STYLES.get(ended.outcome, _ODD)
    took = "" if seconds is None else duration(seconds)
    parts = [*_head(number, run, plan), LinePart(f"{ended.outcome:<9}", 0, style), LinePart(f"{took:>8}", 4, "dim")]
    if ended.contamination is not None:
        parts.append(LinePart("contaminated", 1, _ODD))
    parts += _figures(ended)
    reason = record.error or "; ".join(ended.contradictions) or record.cut_short
    if reason:
        parts = [part for part in parts if part.text.strip()]  # leave the room of empty columns to the reason
        parts.append(LinePart(first_line(reason)))
    return fitted(parts, width)


def fitted(parts: Sequence[LinePart], width: int | None) -> Text:
    """Join the parts into one line of at most `width` characters."""
    shown, gap = list(parts), Text(_GAP, no_wrap=True, overflow="ellipsis")
    while True:
        text = gap.join(Text(part.text, style=part.style) for part in shown)
        text.rstrip()
        last = max(shown, key=lambda part: part.rank)
        if width is None or text.cell_len <= width or not last.rank:
            break
        shown.remove(last)
    if width is not None:
        text.truncate(width, overflow="ellipsis")
    return text


def _head(number: str, run: PlannedRun, plan: Plan) -> Iterator[LinePart]:
    if number:
        digits = len(str(plan.num_runs))
        yield LinePart(f"{number:>{digits if plan.is_open else 2 * digits + 1}}", style="dim")
    yield LinePart(f"{run.arm:<{plan.arm_width}}", style=arm_colour(run.arm) or "")
    yield LinePart(f"{run.setting:<{plan.setting_width}}")


def _figures(run: Run) -> Iterator[LinePart]:
    step_ms, peak = run.figure("perf/step_ms"), run.num_bytes("memory/peak_allocated_gib")
    yield LinePart(f"{'' if step_ms is None else milliseconds(step_ms) + ' a step':>14}", 3)
    yield LinePart(f"{'' if peak is None else 'peak ' + num_bytes(peak):>13}", 2)
    if (value := run.figure(LARGEST_BATCH)) is not None:
        yield LinePart(f"largest batch {value:.0f}", 0)
    if (value := run.figure("val/loss")) is not None:
        yield LinePart(f"val loss {loss(value)}", 1)
    if skipped := run.figure("amp/skipped_steps"):
        yield LinePart(plural(round(skipped), "skipped step"), 5)
