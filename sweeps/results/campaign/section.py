"""A section of the page, and the tables in it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ampsweep.analysis.statistics import Estimate
from ampsweep.report.columns import ABSENT
from ampsweep.report.estimate_text import estimate, ratio_figure
from ampsweep.report.sentences.explaining import arm_note
from ampsweep.text import milliseconds, num_bytes, number, percent
from campaign.ledger import Ledger
from campaign.results import ArmRuns, num_warmup_steps


@dataclass
class Section:
    """Markdown under a heading, with the figures that it shows by file name."""

    title: str
    lines: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)

    def add(self, *lines: str) -> None:
        """A paragraph, or a list or table of such lines."""
        self.lines += [*lines, ""]

    def show(self, name: str, svg: str, about: str) -> None:
        """A figure."""
        self.figures[name] = svg
        self.add(f"![{about}]({name})")

    def markdown(self) -> str:
        return "\n".join([f"## {self.title}", "", *self.lines])


@dataclass(frozen=True)
class Column:
    """A column of a table of arms."""

    header: str
    cell: Callable[[ArmRuns], str | None]


def told(form: Callable[[float], str], value: float | None) -> str:
    """A figure in its form; one that was not measured is told apart from zero."""
    return ABSENT if value is None else form(value)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, figures: bool = True) -> list[str]:
    """The first column to the left, figures to the right, words to the left."""
    rule = ["---", *("---:" if figures else "---" for _ in headers[1:])]
    return [f"| {' | '.join(cells)} |" for cells in [headers, rule, *rows]]


def arms_table(arms: Sequence[ArmRuns], columns: Sequence[Column]) -> list[str]:
    """A row an arm; columns in which no arm has a figure are left out, and with them the table."""
    cells = {column.header: [column.cell(arm) or ABSENT for arm in arms] for column in columns}
    shown = [header for header, column in cells.items() if any(cell != ABSENT for cell in column)]
    if not shown:
        return []
    return table(["arm", *shown], [[arm.arm, *(cells[key][i] for key in shown)] for i, arm in enumerate(arms)])


def about(arms: Sequence[ArmRuns]) -> str:
    """What the arms of a workload have in common, in a line."""
    record = arms[0].runs[0].record
    identity = record.identity
    size = "" if identity.model_size is None else f" ({identity.model_size / 1e6:.4g} M parameters)"
    sequences = "" if identity.seq_len is None else f" of {identity.seq_len} tokens"
    steps = f"{identity.steps} steps, of which the first {num_warmup_steps(record)} are warm-up"
    return f"{identity.model}{size}, batch {identity.batch_size}{sequences}, {identity.optimizer}, {steps}."


def _of(key: str, form: Callable[[float], str]) -> Callable[[ArmRuns], str]:
    return lambda arm: told(form, arm.median(key))


def thousands(value: float) -> str:
    return f"{value:,.0f}"


SPEED: Sequence[Column] = (
    Column("n", lambda arm: str(arm.n) if arm.n else None),
    Column("step", lambda arm: told(milliseconds, arm.figures.step_ms)),
    Column("speedup [95 %]", lambda arm: None if (found := arm.figures.speedup) is None else ratio_figure(found)),
    Column("tokens/s", _of("perf/tokens_per_sec", thousands)),
    Column("samples/s", _of("perf/samples_per_sec", thousands)),
    Column("TFLOP/s", _of("perf/tflops_per_sec", number)),
    Column("MFU", _of("perf/mfu_pct", percent)),
    Column("bound", lambda arm: None if arm.bound is None else milliseconds(arm.bound.step_ms)),
    Column("share of bound", lambda arm: told(percent, arm.share_pct)),
)
MEMORY: Sequence[Column] = (
    Column("peak", lambda arm: told(num_bytes, arm.figures.peak_memory_bytes)),
    Column("predicted", lambda arm: told(num_bytes, arm.figures.predicted_memory_bytes)),
    Column("error", lambda arm: told(signed_percent, arm.figures.prediction_error_pct)),
    Column("saved [95 %]", lambda arm: _with_interval(arm.figures.memory_saved_pct)),
    Column("reserved", lambda arm: told(num_bytes, _gib(arm.median("memory/peak_reserved_gib")))),
)
DEVICE: Sequence[Column] = (
    Column("n", lambda arm: str(arm.n) if arm.n else None),
    Column("utilization", _of("device/utilization_pct", percent)),
    Column("power", _of("device/power_w", lambda value: f"{value:.0f} W")),
    Column("energy a sample", _of("device/energy_per_sample_j", lambda value: f"{number(value)} J")),
    Column("clock", _of("device/clock_mhz", lambda value: f"{value:.0f} MHz")),
    Column("temperature", _of("device/temperature_c", lambda value: f"{value:.0f} °C")),
    Column("power cap held", _of("device/power_capped_pct", percent)),
    Column("slowed by heat", _of("device/throttled_pct", percent)),
)


def _with_interval(of: Estimate | None) -> str | None:
    """In percent, with the interval where there is one; values that are identical need none."""
    if of is None:
        return None
    value, ends = estimate(of)
    return f"{value}%" if ends is None else f"{value}% [{ends[0]}, {ends[1]}]"


def signed_percent(value: float) -> str:
    return f"{value:+.2f}%"


def notes(arms: Sequence[ArmRuns]) -> list[str]:
    """What a reader of the figures must know, and how arms without figures ended."""
    return [f"- {arm.arm}: {arm_note(note)}" for arm in arms for note in arm.figures.notes]


def commands(ledger: Ledger, experiment: str) -> list[str]:
    """How an experiment is repeated: by the campaign, and what that ran, seeds and modes of like commands together."""
    swept: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for entry in ledger.entries.values():
        if entry.experiment != experiment or entry.command is None or not entry.arms:
            continue
        words = entry.command.split()
        key = tuple(_SWEPT.sub(r"\1", word) for word in words)
        values = swept.setdefault(key, {})
        for word in words:
            if match := _SWEPT.fullmatch(word):
                known = values.setdefault(match[1], [])
                known += [value for value in match[2].split(",") if value not in known]
    scale = "" if ledger.scale == "full" else f" --scale {ledger.scale}"
    own = f"python sweeps/results/run.py --budget SECONDS --out DIR --only {experiment}{scale}"
    return ["```bash", own, *(f"# {_joined(key, values)}" for key, values in swept.items()), "```"]


_SWEPT = re.compile(r"^((?:--)?(?:seed|precision)=)(.*)")


def _joined(key: Sequence[str], values: Mapping[str, Sequence[str]]) -> str:
    """A sweep with all of its values; of a worker, which takes one of each, the first."""
    return " ".join(word + ",".join(values.get(word, ())[: 1 if word.startswith("--") else None]) for word in key)


def _gib(value: float | None) -> float | None:
    return None if value is None else value * 2**30
