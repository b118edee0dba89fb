"""The ranks of a training in words: the fullest, the slowest, and whether it matters which."""

from typing import Final

from ampsweep.analysis.rank_table import RankTable
from ampsweep.text import milliseconds, num_bytes, percent, plural

HEADING: Final = "Ranks"
DTYPES: Final = "dtypes of a step"
METHOD: Final = (
    "a rank is a process with a device of its own. Peak memory is that of the fullest rank, step time that of the "
    "slowest, and losses are means over ranks. The peak by category is that of the traced step; waiting for ranks is "
    "the time of a step in which a rank's device waits for the others. Figures are medians over runs, times those of "
    "uncontaminated ones"
)


def rank_line(of: RankTable) -> str:
    """Name the fullest and the slowest rank, with the spread where it matters, and say what is reduced in a step."""
    told = [line for line in (_memory(of), _time(of), _waiting(of), _reduced(of)) if line is not None]
    return "; ".join(told) or plural(len(of.rows), "rank")


def _memory(of: RankTable) -> str | None:
    row = next((one for one in of.rows if one.rank == of.fullest), None)
    if row is None or row.peak_bytes is None:
        return None
    if not of.memory_spread_bytes:
        count = plural(len(of.rows), "rank")
        return f"the {count} have the same peak of {num_bytes(row.peak_bytes)}" if len(of.rows) > 1 else None
    told = f"rank {row.rank} is the fullest, with a peak of {num_bytes(row.peak_bytes)}"
    share = percent(100 * of.memory_spread_bytes / row.peak_bytes)
    spread = f"{num_bytes(of.memory_spread_bytes)} ({share}) more than the emptiest"
    return f"{told}, {spread}" if of.memory_spread_matters else f"{told}; the others have as much within 1%"


def _time(of: RankTable) -> str | None:
    row = next((one for one in of.rows if one.rank == of.slowest), None)
    if row is None or row.step_ms is None or len(of.rows) == 1:
        return None
    told = f"rank {row.rank} is the slowest, with {milliseconds(row.step_ms)} a step"
    if not of.time_spread_matters or of.time_spread_ms is None:
        return f"{told}; the others take as long within 5%"
    return f"{told}, {milliseconds(of.time_spread_ms)} more than the fastest"


def _waiting(of: RankTable) -> str | None:
    row = next((one for one in of.rows if one.rank == of.waited_for), None)
    if row is None or row.communication_ms is None:
        return None
    longest = max(one.communication_ms for one in of.rows if one.communication_ms is not None)
    told = f"the others wait for rank {row.rank}: in a step it waits {milliseconds(row.communication_ms)} for them"
    return f"{told}, and they up to {milliseconds(longest)}"


def _reduced(of: RankTable) -> str | None:
    if of.reduced_mib is None:
        return None
    return f"each rank hands {num_bytes(of.reduced_mib * 2**20)} of gradients to the reduction in a step"


def ranks_left_out(count: int) -> str:
    """Say how many ranks a table has no room for."""
    return f"{plural(count, 'more rank')} in the records"
