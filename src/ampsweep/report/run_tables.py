"""The runs of a comparison as tables: problems, differences, directories, environments."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
from ampsweep.report.tables import (
    ABSENT,
    MAX_ROWS,
    Cell,
    Column,
    Columns,
    Table,
    count_cell,
    quantity,
    scalar_text,
    spread_cell,
    table_of,
    text_column,
    text_table,
    value_cell,
    value_column,
)
from ampsweep.text import listed, loss, milliseconds, plural, signed


def problems_table(comparison: Comparison) -> Table:
    """Every reason why a run's figures do not fully count, the gravest first; similar ones share a row."""
    arms: dict[Problem, list[str]] = defaultdict(list)
    for problem in comparison.problems:
        arms[replace(problem, arm=None)] += [] if problem.arm is None else [problem.arm]
    rows = []
    for of, names in arms.items():
        why, consequence, seeds = of.finding.why, of.finding.consequence, listed(map(str, of.seeds))
        texts = (of.finding.name, ", ".join(names), why, consequence, seeds, of.compared)
        rows.append([text or ABSENT for text in texts])
    headers = ("problem", "arm", "why", "consequence", "seeds", "workload")
    table = text_table("problems", headers, rows, what="problems")
    return table if len(comparison.compared) > 1 else table.of(range(5))


_RESUMED: Final[Columns[ResumedArm]] = (
    text_column("saved in", lambda resumed: resumed.saved_in),
    text_column("resumed in", lambda resumed: resumed.resumed_in),
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
    entries, named = _entries(comparison), comparison.keys.named
    varied = varied_keys([entry.run.settings for entry in entries])

    def differences(entry: RunEntry) -> str:
        own = entry.run.settings
        return " ".join(f"{key}={scalar_text(own[key])}" for key in varied if key in own) or ABSENT

    columns: Columns[RunEntry] = (
        text_column("arm", lambda entry: entry.arm),
        (Column("seed", numeric=True), lambda entry: count_cell(entry.seed)),
        text_column("status", lambda entry: entry.status + ("" if entry.contaminated is None else ", contaminated")),
        _figure_column("step time", "perf/step_ms", milliseconds),
        _figure_column(named("peak memory"), "memory/peak_allocated_gib", partial(quantity, unit="GiB")),
        _figure_column(named("val loss"), "val/loss", loss),
        text_column("differs in", differences, optional=True),
        (Column("directory"), lambda entry: _directory(entry.directory)),
        (Column("W&B", optional=True), lambda entry: _tracked(entry.tracked_at)),
    )
    title = "All runs" if len(entries) <= MAX_ROWS else "The first runs"
    return table_of("runs", columns, entries, lambda entry: entry.arm, title=title, what="runs")


def _figure_column(title: str, key: str, text: Callable[[float], str]) -> tuple[Column, Callable[[RunEntry], Cell]]:
    return Column(title, key, numeric=True), lambda entry: value_cell(entry.run.figure(key), text)


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
    precision = {arm: leaves(run.record.config.get("precision", {})) for arm, run in first.items()}
    varied = [key for key in varied_keys(list(precision.values())) if key != "mode"]
    headers = ["arm", *varied, "matrix arithmetic of the traced step"]
    rows = [[arm, *(scalar_text(precision[arm].get(key)) for key in varied), _arithmetic(runs, arm)] for arm in first]
    rows = [] if all(run.record.source == "wandb" for run in runs) else rows  # only their names are known
    return text_table("settings", headers, rows, title="What the arms are")


def environment_tables(comparison: Comparison) -> tuple[Table, Table]:
    """The facts about machine and software that differ, with the runs of each value; and those of all runs."""
    runs = [entry.run for entry in _entries(comparison)]
    environments = [(run, leaves(run.record.environment)) for run in runs if run.record.environment]
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
    flops = next((run.record.proof.flops for run in runs if run.arm == arm and run.record.proof.flops), {})
    shares = (f"{dtype} {100 * count / sum(flops.values()):.1f}%" for dtype, count in flops.items() if count)
    return ", ".join(shares) or ABSENT
