"""The runs of a comparison as tables: problems, differences, directories, environments."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import quote

from ampsweep.analysis.comparison import Comparison, Problem
from ampsweep.analysis.resumed_runs import NUM_NEAR_STEPS, ResumedArm
from ampsweep.analysis.run_findings import RunEntry
from ampsweep.analysis.runs import Run, leaves
from ampsweep.analysis.workloads import varied_keys
from ampsweep.config.modes import arm_after
from ampsweep.metrics import METRICS
from ampsweep.report.page_limits import MAX_ROWS, rows_left_out
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
    value_column,
)
from ampsweep.text import listed, loss, plural, signed

_FIGURES: Final = (
    Column("step time", "perf/step_ms", numeric=True),
    Column("peak memory", "memory/peak_allocated_gib", numeric=True),
    Column("val loss", "val/loss", numeric=True),
)


def problems_table(comparison: Comparison) -> Table:
    """Every reason why a run's figures do not fully count, the gravest first; similar ones share a row."""
    arms: dict[Problem, list[str]] = defaultdict(list)
    for problem in comparison.problems:
        arms[replace(problem, arm=None)] += [] if problem.arm is None else [problem.arm]
    rows = [_problem(problem, of) for problem, of in arms.items()]
    table = Table(
        key="problems",
        columns=tuple(map(Column, ("problem", "arm", "why", "consequence", "seeds", "workload"))),
        rows=tuple(rows[:MAX_ROWS]),
        more=rows_left_out(len(rows), "problems"),
    )
    return table if len(comparison.compared) > 1 else table.of(range(5))


def _problem(problem: Problem, arms: Sequence[str]) -> Row:
    finding, seeds = problem.finding, listed(map(str, problem.seeds))
    texts = (finding.name, ", ".join(arms), finding.why, finding.consequence, seeds, problem.compared)
    return Row(tuple(Cell(text or ABSENT) for text in texts), arm=arms[0] if len(arms) == 1 else None)


_RESUMED: Final[Columns[ResumedArm]] = (
    (Column("saved in"), lambda resumed: Cell(resumed.saved_in)),
    (Column("resumed in"), lambda resumed: Cell(resumed.resumed_in)),
    value_column("after step", "step", str),
    (Column("train loss there", "loss", numeric=True, optional=True), lambda resumed: spread_cell(resumed.loss, loss)),
    (
        Column("its jump", "loss_jump", numeric=True),
        lambda resumed: spread_cell(resumed.loss_jump, partial(signed, digits=2)),
    ),
    value_column(f"skipped in the next {NUM_NEAR_STEPS}", "skipped_steps", str, optional=True),
    (Column("runs", numeric=True), lambda resumed: count_cell(resumed.num_runs)),
)


def resumed_table(resumed: Sequence[ResumedArm]) -> Table:
    """The jump of the training loss after a checkpoint, for each pair of arms that saved and resumed it."""
    return table_of("resumed", _RESUMED, resumed, lambda of: arm_after(of.resumed_in, of.saved_in, of.step))


def runs_table(comparison: Comparison) -> Table:
    """A row for each run: its main figures, the settings that differ between runs, and links to its files."""
    entries = _entries(comparison)
    settings = [entry.run.settings for entry in entries]
    varied = varied_keys(settings)
    differing = [" ".join(f"{key}={scalar_text(own[key])}" for key in varied if key in own) for own in settings]
    rows = tuple(
        Row(
            (
                *(Cell(entry.arm), count_cell(entry.seed)),
                Cell(entry.status if entry.contaminated is None else f"{entry.status}, contaminated"),
                *(_figure(entry.run, column.key) for column in _FIGURES),
                *(Cell(differences or ABSENT), _directory(entry.directory), _tracked(entry.tracked_at)),
            ),
            arm=entry.arm,
        )
        for entry, differences in list(zip(entries, differing, strict=True))[:MAX_ROWS]
    )
    return Table(
        key="runs",
        title="All runs" if len(rows) == len(entries) else "The first runs",
        columns=(
            *(Column("arm"), Column("seed", numeric=True), Column("status")),
            *(replace(column, title=comparison.keys.named(column.title)) for column in _FIGURES),
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
    """A relative path is a link, which works if the page is beside the runs."""
    return Cell(path, link=None if path.startswith("/") else f"./{quote(path, errors='surrogateescape')}/")


def _tracked(place: str | None) -> Cell:
    return Cell() if place is None else Cell(place, link=place if place.startswith(("https://", "http://")) else None)


def arm_settings_table(comparison: Comparison) -> Table:
    """A row for each arm: the precision settings that differ between arms, and the arithmetic of its traced step."""
    first: dict[str, Run] = {}
    runs = [entry.run for entry in _entries(comparison)]
    for run in runs:
        first.setdefault(run.arm, run)
    precision = {arm: dict(leaves(run.record.config.get("precision", {}))) for arm, run in first.items()}
    varied = [key for key in varied_keys(list(precision.values())) if key != "mode"]
    headers = ["arm", *varied, "matrix arithmetic of the traced step"]
    rows = [[arm, *(scalar_text(precision[arm].get(key)) for key in varied), _arithmetic(runs, arm)] for arm in first]
    rows = [] if all(run.record.source == "wandb" for run in runs) else rows  # only their names are known
    return text_table("settings", headers, rows, title="What the arms are")


def environment_tables(comparison: Comparison) -> tuple[Table, Table]:
    """The facts about machine and software that differ, with the runs of each value; and those of all runs."""
    runs = [entry.run for entry in _entries(comparison)]
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
    """The five dtypes of each arm and strategy, and what casts."""
    arms = [(workload, arm) for workload in comparison.workloads for arm in workload.arms if arm.dtypes]
    known = [(arm.arm, str(of.facts.get("parallel") or ABSENT), arm.casts or ABSENT, arm.dtypes) for of, arm in arms]
    kinds = list(dict.fromkeys(kind for *_, dtypes in known for kind in dtypes))
    rows = [(*named, *(dtypes.get(kind, ABSENT) for kind in kinds)) for *named, dtypes in known]
    headers = ("arm", "parallel", "cast by", *(kind.replace("_", " ") for kind in kinds))
    return text_table("dtypes", headers, dict.fromkeys(rows), title="The dtypes of a step")


def _entries(comparison: Comparison) -> list[RunEntry]:
    entries: list[RunEntry] = []
    for workload in comparison.compared:
        entries += sorted(workload.runs, key=lambda entry: (workload.names.index(entry.arm), entry.seed))
    return entries


def _arithmetic(runs: Iterable[Run], arm: str) -> str:
    for run in runs:
        flops = run.record.proof.flops
        if run.arm == arm and flops:
            total = sum(flops.values())
            return ", ".join(f"{dtype} {100 * count / total:.1f}%" for dtype, count in flops.items() if count)
    return ABSENT
