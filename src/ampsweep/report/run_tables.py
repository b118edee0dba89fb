"""The runs behind a comparison as tables: what went wrong, what tells them apart, where they are, on what they ran."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import quote

from ampsweep.analysis.comparison import Comparison, Problem
from ampsweep.analysis.resumed import NUM_NEAR_STEPS, ResumedArm
from ampsweep.analysis.run_findings import RunEntry
from ampsweep.analysis.runs import Run, leaves
from ampsweep.analysis.workloads import varied_keys
from ampsweep.config.modes import arm_after
from ampsweep.metrics import METRICS
from ampsweep.report.extent import MAX_ROWS, rows_left_out
from ampsweep.report.tables import (
    ABSENT,
    Cell,
    Column,
    Columns,
    Row,
    Table,
    count_cell,
    quantity,
    scalar_text,
    spread_cell,
    table_of,
    text_table,
    value_cell,
)
from ampsweep.text import listed, loss, plural, signed

_FIGURES: Final = (
    Column("step time", "perf/step_ms", numeric=True),
    Column("peak memory", "memory/peak_allocated_gib", numeric=True),
    Column("val loss", "val/loss", numeric=True),
)


def problems_table(comparison: Comparison) -> Table:
    """Everything that keeps a run's figures from counting in full, the gravest first; alike ones of arms in one row."""
    arms: dict[Problem, list[str]] = defaultdict(list)
    for one in comparison.problems:
        arms[replace(one, arm=None)] += [] if one.arm is None else [one.arm]
    rows = [_problem(one, of) for one, of in arms.items()]
    table = Table(
        key="problems",
        columns=tuple(map(Column, ("problem", "arm", "why", "consequence", "seeds", "workload"))),
        rows=tuple(rows[:MAX_ROWS]),
        more=rows_left_out(len(rows), "problems"),
    )
    return table if len(comparison.compared) > 1 else table.of(range(5))


def _problem(one: Problem, arms: Sequence[str]) -> Row:
    of = one.finding
    texts = (of.name, ", ".join(arms), of.why, of.consequence, listed(map(str, one.seeds)), one.compared)
    return Row(tuple(Cell(text or ABSENT) for text in texts), arm=arms[0] if len(arms) == 1 else None)


_RESUMED: Final[Columns[ResumedArm]] = (
    (Column("saved in"), lambda one: Cell(one.saved_in)),
    (Column("resumed in"), lambda one: Cell(one.resumed_in)),
    (Column("after step", "step", numeric=True), lambda one: count_cell(one.step)),
    (Column("train loss there", "loss", numeric=True, optional=True), lambda one: spread_cell(one.loss, loss)),
    (Column("its jump", "loss_jump", numeric=True), lambda one: spread_cell(one.loss_jump, partial(signed, digits=2))),
    (
        Column(f"skipped in the next {NUM_NEAR_STEPS}", "skipped_steps", numeric=True, optional=True),
        lambda one: value_cell(one.skipped_steps, str),
    ),
    (Column("runs", numeric=True), lambda one: count_cell(one.num_runs)),
)


def resumed_table(resumed: Sequence[ResumedArm]) -> Table:
    """The jump of the training loss after a checkpoint, for each two arms that it was saved in and resumed in."""
    return table_of("resumed", _RESUMED, resumed, lambda one: arm_after(one.resumed_in, one.saved_in, one.step))


def runs_table(comparison: Comparison) -> Table:
    """A run a row, with its main figures, the settings in which it differs from others, and links to its files."""
    entries = _listed(comparison)
    differing = _differences([entry.run for entry in entries])
    rows = tuple(
        Row(
            (
                *(Cell(entry.arm), count_cell(entry.seed)),
                Cell(entry.status if entry.contaminated is None else f"{entry.status}, contaminated"),
                *(_figure(entry.run, column.key) for column in _FIGURES),
                *(Cell(settings or ABSENT), _directory(entry.directory), _tracked(entry.tracked_at)),
            ),
            arm=entry.arm,
        )
        for entry, settings in list(zip(entries, differing, strict=True))[:MAX_ROWS]
    )
    return Table(
        key="runs",
        title="All runs" if len(rows) == len(entries) else "The first runs",
        columns=(
            *(Column("arm"), Column("seed", numeric=True), Column("status"), *_FIGURES),
            *(Column("differs in", optional=True), Column("directory"), Column("W&B", optional=True)),
        ),
        rows=rows,
        more=rows_left_out(len(entries), "runs"),
    )


def _figure(run: Run, key: str) -> Cell:
    value = run.figure(key)
    if value is None:
        return Cell()
    return Cell(f"{value:.4f}" if key == "val/loss" else quantity(value, METRICS[key].unit), value)


def _directory(path: str) -> Cell:
    """A link that works if the page lies beside the runs; otherwise the plain path."""
    return Cell(path, link=None if path.startswith("/") else f"./{quote(path, errors='surrogateescape')}/")


def _tracked(place: str | None) -> Cell:
    if place is None:
        return Cell()
    return Cell(place, link=place if place.startswith(("https://", "http://")) else None)


def arm_settings_table(comparison: Comparison) -> Table:
    """An arm a row: the parts of its precision in which the arms differ, and what its traced step computed in."""
    first: dict[str, Run] = {}
    runs = [entry.run for entry in _listed(comparison)]
    for run in runs:
        first.setdefault(run.arm, run)
    precision = {arm: dict(leaves(run.record.config.get("precision", {}))) for arm, run in first.items()}
    varied = [key for key in varied_keys(list(precision.values())) if key != "mode"]
    headers = ["arm", *varied, "matrix arithmetic of the traced step"]
    rows = [[arm, *(scalar_text(precision[arm].get(key)) for key in varied), _arithmetic(runs, arm)] for arm in first]
    return text_table("settings", headers, rows, title="What the arms are")


def environment_tables(comparison: Comparison) -> tuple[Table, Table]:
    """Facts about machine and software: those that differ, with the runs of each value, and those of all runs."""
    runs = [entry.run for entry in _listed(comparison)]
    environments = [(run, dict(leaves(run.record.environment))) for run in runs if run.record.environment]
    varied = set(varied_keys([facts for _, facts in environments]))
    keys = dict.fromkeys(key for _, facts in environments for key in facts)
    common = [(key, scalar_text(environments[0][1].get(key))) for key in keys if key not in varied]
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for run, facts in environments:
        for key in varied:
            owners[key, scalar_text(facts.get(key))].append(run.arm)
    differing = [
        (key, value, f"{plural(len(arms), 'run')}: {', '.join(dict.fromkeys(arms))}")
        for (key, value), arms in sorted(owners.items())
    ]
    return (
        text_table("environment_differing", ("fact", "value", "runs"), differing, title="What differs between runs"),
        text_table("environment", ("fact", "value"), common, title="The same for all runs"),
    )


def dtypes_table(comparison: Comparison) -> Table:
    """The five dtypes of each arm under each strategy, and what casts."""
    known = [
        (arm.arm, str(workload.facts.get("parallel") or ABSENT), arm.casts or ABSENT, arm.dtypes)
        for workload in comparison.workloads
        for arm in workload.arms
        if arm.dtypes
    ]
    kinds = list(dict.fromkeys(kind for *_, dtypes in known for kind in dtypes))
    rows = [(*named, *(dtypes.get(kind, ABSENT) for kind in kinds)) for *named, dtypes in known]
    headers = ("arm", "parallel", "cast by", *(kind.replace("_", " ") for kind in kinds))
    return text_table("dtypes", headers, dict.fromkeys(rows), title="The dtypes of a step")


def _listed(comparison: Comparison) -> list[RunEntry]:
    """The entries of all runs: by workload, arm by arm in the order of tables, each by seed."""
    return [
        entry
        for one in comparison.compared
        for entry in sorted(one.runs, key=lambda entry: (one.names.index(entry.arm), entry.seed))
    ]


def _differences(runs: Sequence[Run]) -> list[str]:
    """For each run the settings in which the runs differ, arm and seed apart: `data.batch_size=16 optimizer.lr=0.1`."""
    settings = [run.settings for run in runs]
    varied = varied_keys(settings)
    return [" ".join(f"{key}={scalar_text(one[key])}" for key in varied if key in one) for one in settings]


def _arithmetic(runs: Iterable[Run], arm: str) -> str:
    """Shares of the traced step's matrix FLOPs by dtype, of the arm's first run that was traced."""
    for run in runs:
        flops = run.record.proof.flops
        if run.arm == arm and flops:
            total = sum(flops.values())
            return ", ".join(f"{dtype} {100 * count / total:.1f}%" for dtype, count in flops.items() if count)
    return ABSENT
