"""Ranks and dtypes as tables of texts for every renderer."""

from collections.abc import Iterator, Sequence
from typing import Final

from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.rank_table import RankRow, RankTable
from ampsweep.memory_categories import MEMORY_CATEGORIES
from ampsweep.report.columns import ABSENT
from ampsweep.report.sentences.memory_bytes import category
from ampsweep.report.sentences.ranks import rank_line, ranks_left_out
from ampsweep.report.table import Table, without_empty_columns
from ampsweep.text import milliseconds, num_bytes

MAX_ROWS: Final = 16
"""Ranks of an arm that a table shows; of more the first, the last, and those that its sentences name."""

KIND: Final = "kind of device"
DTYPES: Final = {
    "compute": "compute",
    "parameters": "parameters",
    "gradients": "gradients",
    "reduction": "reduction",
    "optimizer_state": "optimizer state",
}


def ranks_table(named: Sequence[tuple[str, RankTable]], *, categories: bool) -> Table:
    """The ranks of arms (or runs) by name, a row each; with a column a category of the traced step's peak if asked."""
    tables = [of for _, of in named]
    of_rows = [row for of in tables for row in of.rows]
    shown = [one for one in MEMORY_CATEGORIES if any(row.peak_by_category.get(one) for row in of_rows)]
    kinds = shown if categories else []
    is_measured = {
        "waiting for ranks": any(row.communication_ms is not None for row in of_rows),
        "waiting for data": any(row.data_wait_ms is not None for row in of_rows),
    }
    timed = [name for name, known in is_measured.items() if known]
    headers = ("arm", "rank", "host", "device", KIND, "peak memory", *map(category, kinds), "step time", *timed, "")
    numeric = (False, True, False, False, False, *(True,) * (2 + len(kinds) + len(timed)), False)
    rows = []
    for name, of in named:
        for row in _shown(of):
            waits = {"waiting for ranks": row.communication_ms, "waiting for data": row.data_wait_ms}
            rows.append(
                (
                    name,
                    str(row.rank),
                    ", ".join(row.hosts) or ABSENT,
                    ", ".join(row.devices) or ABSENT,
                    ", ".join(row.device_names) or ABSENT,
                    _bytes(row.peak_bytes),
                    *(_bytes(row.peak_by_category.get(one)) for one in kinds),
                    _ms(row.step_ms),
                    *(_ms(waits[one]) for one in timed),
                    ", ".join(_marks(row, of)),
                )
            )
    is_same = len({row.device_names for row in of_rows}) == 1  # then the environment names it
    return without_empty_columns(Table(headers, numeric, tuple(rows)).without({KIND} if is_same else ()))


def arms_with_ranks(workload: WorkloadComparison) -> list[tuple[str, RankTable]]:
    """The arms that ran on several ranks, with these."""
    return [(arm.arm, arm.ranks) for arm in workload.arms if arm.ranks is not None]


def lines_of_ranks(workload: WorkloadComparison) -> list[tuple[str, str]]:
    """(arm, what to know of its ranks), with the number of those that the table has no room for."""
    return [(arm, "; ".join([rank_line(of), *_left_out(of)])) for arm, of in arms_with_ranks(workload)]


def dtypes_table(workloads: Sequence[WorkloadComparison]) -> Table | None:
    """The five dtypes of each arm under each strategy, and what casts; None where no record has them."""
    known = [
        (arm.arm, str(workload.facts.get("parallel") or ABSENT), arm.casts or ABSENT, arm.dtypes)
        for workload in workloads
        for arm in workload.arms
        if arm.dtypes
    ]
    kinds = [kind for kind in DTYPES if any(kind in dtypes for *_, dtypes in known)]
    rows = [(*named, *(dtypes.get(kind, ABSENT) for kind in kinds)) for *named, dtypes in known]
    headers = ("arm", "parallel", "cast by", *(DTYPES[kind] for kind in kinds))
    return Table(headers, (False,) * len(headers), tuple(dict.fromkeys(rows))) if rows else None


def has_ranks(workloads: Sequence[WorkloadComparison]) -> bool:
    """True if any arm ran on several ranks."""
    return any(arm.ranks is not None for workload in workloads for arm in workload.arms)


def _left_out(of: RankTable) -> list[str]:
    count = len(of.rows) - len(_shown(of))
    return [ranks_left_out(count)] if count else []


def _shown(of: RankTable) -> list[RankRow]:
    if len(of.rows) <= MAX_ROWS:
        return list(of.rows)
    named = {of.fullest, of.slowest, of.waited_for, of.rows[-1].rank} - {None}
    rest = [row for row in of.rows if row.rank not in named][: MAX_ROWS - len(named)]
    kept = named | {row.rank for row in rest}
    return [row for row in of.rows if row.rank in kept]


def _marks(row: RankRow, of: RankTable) -> Iterator[str]:
    if row.rank == of.fullest and of.memory_spread_bytes:
        yield "fullest"
    if row.rank == of.slowest and len(of.rows) > 1:
        yield "slowest"
    if row.rank == of.waited_for:
        yield "waited for"


def _bytes(value: float | None) -> str:
    return ABSENT if value is None else num_bytes(value)


def _ms(value: float | None) -> str:
    return ABSENT if value is None else milliseconds(value)
