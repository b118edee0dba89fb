"""What changed between two sweeps, as a document."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Final

from ampsweep.analysis.arm_changes import ArmChange, CostChange
from ampsweep.analysis.run_findings import statuses_text
from ampsweep.analysis.sweep_changes import SweepChanges, WorkloadChange
from ampsweep.report.document import Document, Item, Prose, Section, items_of, section_of
from ampsweep.report.palette import arm_styles
from ampsweep.report.tables import (
    Cell,
    Column,
    Columns,
    Table,
    count_cell,
    estimate_cell,
    table_of,
    value_cell,
)
from ampsweep.text import as_sentence, loss, milliseconds, num_bytes

SCHEMA: Final = 1


def changes_document(changes: SweepChanges, old: str, new: str) -> Document:
    """The answer, a table for each workload, and what does not count; `old` and `new` say where the sweeps are."""
    answer = [Prose(changes.sentence, "headline")]
    if changes.regressions and changes.not_known:
        answer.append(Prose(f"Not known: {changes.not_known}."))
    left_out = [Item(of.finding.sentence, of.side, of.arm) for of in changes.not_counted]
    left_out += [Item(as_sentence(of.sentence), "file") for of in changes.file_problems]
    how = [Item(text, f"{figure}:") for figure, text in _method(changes)]
    sections = (
        Section(title="Verdict", key="verdict", blocks=(*answer, *map(_card, changes.workloads))),
        section_of("Notes", "", items_of(Item(as_sentence(note.sentence)) for note in changes.notes)),
        section_of("What does not count", "problems", items_of(left_out)),
        section_of("How each figure was taken", "method", items_of(how), on_screen=False),
    )
    facts = {field.name: getattr(changes, field.name) for field in fields(changes)}
    return Document(
        title="NEW against OLD",
        subtitle=f"OLD {old}, NEW {new}",
        sections=tuple(section for section in sections if section is not None),
        arms=arm_styles(arm.arm for _, arm in changes.named_arms),
        data={
            "schema": SCHEMA,
            "old": old,
            "new": new,
            "sentence": changes.sentence,
            "regressions": changes.regressions,
            "not_known": changes.not_known,
            **facts,
        },
    )


def _card(workload: WorkloadChange) -> Section:
    lines = [Item(parity.sentence, "parity", arm.arm) for arm in workload.arms for parity in arm.parities]
    lines += [
        Item(f"{topic}: {why}", "not known", arm.arm)
        for arm in workload.arms
        for topic, why in arm.not_known
        if topic in ("speed", "memory") or not arm.parities  # which tell it themselves
    ]
    conditions = Prose(as_sentence(workload.conditions.sentence))
    return Section(title=workload.title, kind="card", blocks=(conditions, _table(workload), *items_of(lines)))


def _verdict(arm: ArmChange) -> Cell:
    if any(arm.regressions):
        return Cell("regression", "regression", tone="bad")
    if not arm.has_completed:
        return Cell()
    if any(True for _ in arm.not_known):
        return Cell("not known", "not known", tone="open")
    return Cell("better", "better", tone="good") if arm.is_better else Cell("as good", "as good", tone="even")


def _speed(arm: ArmChange) -> Cell:
    if arm.speed is None:
        return Cell()
    unchecked = f"{arm.num_unchecked} unchecked" if arm.num_unchecked else ""
    return estimate_cell(arm.speed.ratio, "ratio", arm.speed.verdict, unchecked, n=arm.num_pairs)


def _memory(arm: ArmChange) -> Cell:
    if arm.memory is None:
        return Cell()
    return estimate_cell(arm.memory_added_bytes, "bytes", arm.memory.verdict, arm.memory.growth_text)


def _became(old_and_new: tuple[float, float] | None, text: Callable[[float], str]) -> Cell:
    if old_and_new is None:
        return Cell()
    old, new = old_and_new
    return value_cell(new, text, f"was {text(old)}")


def _ended(arm: ArmChange) -> Cell:
    old, new = (statuses_text(arm.statuses[side]) for side in ("OLD", "NEW"))
    return Cell(new, detail="" if old == new else f"was {old}")


def _costs(cost: CostChange | None) -> tuple[float, float] | None:
    return None if cost is None else (cost.old, cost.new)


_COLUMNS: Final[Columns[ArmChange]] = (
    (Column("arm"), lambda arm: Cell(arm.arm)),
    (Column("verdict"), _verdict),
    (Column("speed", "speed", numeric=True), _speed),
    (Column("memory added", "memory_added_bytes", numeric=True), _memory),
    (
        Column("loss gap", "loss_gap", numeric=True),
        lambda arm: estimate_cell(arm.loss_gap, "difference", arm.parity, n=arm.num_pairs),
    ),
    (Column("n", "pairs", numeric=True), lambda arm: count_cell(arm.num_pairs)),
    (Column("step time", "step_ms", numeric=True), lambda arm: _became(_costs(arm.speed), milliseconds)),
    (Column("peak memory", "peak_memory_bytes", numeric=True), lambda arm: _became(_costs(arm.memory), num_bytes)),
    (Column("val loss", "val_loss", numeric=True), lambda arm: _became(arm.losses, loss)),
    (Column("ended"), _ended),
)


def _table(workload: WorkloadChange) -> Table:
    table = table_of("changes", _COLUMNS, workload.arms, lambda arm: arm.arm)
    return replace(table, columns=tuple(replace(of, title=workload.keys.named(of.title)) for of in table.columns))


def _method(changes: SweepChanges) -> Iterator[tuple[str, str]]:
    tolerance, margin = f"{changes.tolerance_pct:g}%", f"{changes.margin_pct:g}%"
    yield (
        "pairs",
        "runs of one arm, seed and workload (config, data, number of parameters) in both sweeps, whatever else changed "
        "between them; repeats of a seed are averaged. Fewer than 3 give no interval.",
    )
    yield (
        "speed",
        "OLD's step time over NEW's (above 1x is faster), geometric mean over pairs of uncontaminated runs [95% "
        f"t-interval of the mean log ratio]. Worse: the whole interval is beyond a step {tolerance} longer. The "
        "interval is that of seeds: the sweeps ran at different times, and whatever else the machine did then is in "
        "the ratio.",
    )
    yield (
        "memory",
        "NEW's peak minus OLD's, mean over pairs, with its growth [95% t-interval]; equal bytes in two pairs are "
        f"exact. Worse: the whole interval is beyond a peak {tolerance} larger.",
    )
    yield (
        "loss",
        f"NEW's final validation loss minus OLD's, against a margin of {margin} of OLD's mean loss: equivalent if the "
        "90% t-interval lies inside it (two one-sided tests at 5%), worse if it lies wholly beyond. The table has the "
        "95% interval.",
    )
    yield (
        "regression",
        "a figure that is worse, or runs that fail, run out of memory, diverge, are unsupported or computed in another "
        "mode where OLD's completed. Not known: the interval does not exclude a regression, or there is none. "
        "Intervals are those of single figures, without correction for their number.",
    )
