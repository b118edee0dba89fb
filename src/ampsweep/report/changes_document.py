"""What changed between two sweeps, as a document."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Final

from ampsweep.analysis.arm_changes import ArmChange
from ampsweep.analysis.sweep_changes import SweepChanges, WorkloadChange
from ampsweep.report.arm_table import figures_tables
from ampsweep.report.document import Document, Item, Prose, Section, items_of, section_of
from ampsweep.report.palette import arm_styles
from ampsweep.report.tables import Cell
from ampsweep.text import as_sentence

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
    unknown = [f"{name}: {text}" for name, arm in changes.named_arms for _, text in arm.not_known]
    answers = {"sentence": changes.sentence, "regressions": changes.regressions, "not_known": unknown}
    return Document(
        title="NEW against OLD",
        subtitle=f"OLD {old}, NEW {new}",
        sections=tuple(section for section in sections if section is not None),
        arms=arm_styles(arm.arm for _, arm in changes.named_arms),
        data={"schema": SCHEMA, "old": old, "new": new, **answers, **facts},
    )


def _card(workload: WorkloadChange) -> Section:
    rows = [row for arm in workload.arms for row in ((arm.old, None, Cell()), (arm.new, arm.judgements, _verdict(arm)))]
    names = [arm.arm for arm in workload.arms for _ in ("OLD", "NEW")]  # a page hides both rows of an arm
    first, further = (
        replace(table, rows=tuple(replace(row, arm=name) for row, name in zip(table.rows, names, strict=True)))
        for table in figures_tables(rows, workload.arms[0].new.keys)
    )
    lines = [Item(of.sentence, "parity", arm.arm) for arm in workload.arms for of in arm.judgements.parities]
    unknown = ((arm.arm, *of) for arm in workload.arms for of in arm.not_known)
    lines += [Item(text, "not known", arm) for arm, topic, text in unknown if topic in ("speed", "memory")]
    has_more = len(further.shown().columns) > 1
    more = [Section(title="Further figures", blocks=(further,), on_screen=False)] if has_more else []
    conditions = Prose(as_sentence(workload.conditions.sentence))
    return Section(title=workload.title, kind="card", blocks=(conditions, first, *items_of(lines), *more))


def _verdict(arm: ArmChange) -> Cell:
    if any(arm.regressions):
        return Cell("regression", "regression", tone="bad")
    if not arm.has_completed:
        return Cell()
    if any(arm.not_known):
        return Cell("not known", "not known", tone="open")
    return Cell("better", "better", tone="good") if arm.is_better else Cell("as good", "as good", tone="even")


def _method(changes: SweepChanges) -> Iterator[tuple[str, str]]:
    yield (
        "pairs",
        "runs of one arm, seed and workload (config, data, number of parameters) in both sweeps, whatever else changed "
        "between them; repeats of a seed are averaged. Fewer than 3 give no interval.",
    )
    yield (
        "figures",
        "those of NEW against OLD, over pairs: the ratio of OLD's step time to NEW's (uncontaminated runs, geometric "
        "mean), OLD's peak memory minus NEW's, NEW's final loss minus OLD's [95% t-intervals]. The intervals are those "
        "of seeds: the sweeps ran at different times, and whatever else the machine did then is in the speed.",
    )
    yield (
        "regression",
        f"a step that takes more than {changes.tolerance_pct:g}% longer or a peak that is more than "
        f"{changes.tolerance_pct:g}% larger, by its whole 95% interval; a final loss that is worse by more than "
        f"{changes.margin_pct:g}% of OLD's, by its whole 90% interval (two one-sided tests at 5%); or runs that fail, "
        "run out of memory, diverge, are unsupported or computed in another mode where OLD's completed. Not known: the "
        "interval does not exclude a regression, or there is none.",
    )
