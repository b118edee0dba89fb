"""The smallest set of modules that must compute in float32 to fix a fault."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ampsweep.doctor.loss.fault import NOT_FINITE, LossCase
from ampsweep.doctor.loss.findings import SmallestSet
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigin, NonfiniteOrigins, trace_origins
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.side_by_side.recorded_step import matched, record_step
from ampsweep.observe.calls import Call

_FEW: Final = 8
_FEW_SHARE: Final = 0.25  # a larger set of modules is no finding: another precision mode is
_Fixes = Callable[[frozenset[str]], bool]


@dataclass(frozen=True)
class Culprits:
    """A minimal set that fixes a fault by computing in float32: leaving out any member brings the fault back."""

    kept: tuple[str, ...]
    mending: SmallestSet
    origins: tuple[NonfiniteOrigin, ...]  # of the first step that showed the fault


def smallest_set(ranked: Sequence[str], fixes: _Fixes, most: int) -> tuple[str, ...] | None:
    """Find the culprits among suspects by a binary search for each, in order; None if there are more than `most`. The
    empty set is known not to fix the fault, and the set of all suspects to fix it."""
    found: list[str] = []
    end = len(ranked)
    while not found or not fixes(frozenset(found)):
        if len(found) >= most:
            return None
        fails, works = 0, end
        while works - fails > 1:
            middle = (fails + works) // 2
            if fixes(frozenset([*ranked[:middle], *found])):
                works = middle
            else:
                fails = middle
        end = works - 1
        found.insert(0, ranked[end])
    return tuple(found)


def trace_fault(case: LossCase) -> NonfiniteOrigins:
    """Find the origins of inf and NaN in the step that shows the fault (the first step if the loss is finite). An inf
    or NaN that float32 makes at the same place, such as the logarithm of an unused zero, does not count."""
    assert case.fault is not None
    num_before = case.fault.replayed - 1 if case.fault.sign in NOT_FINITE else 0
    traced = trace_origins(Variant(precision=case.precision).replay(case.examined), num_before)
    if any(not origin.is_range for origin in traced.found):
        meant = {origin.site for origin in trace_origins(case.examined.baseline(), num_before).found}
        traced.found = [origin for origin in traced.found if origin.site not in meant]
    return traced


def find_culprits(case: LossCase, traced: NonfiniteOrigins, by_error: Sequence[Call]) -> Culprits | None:
    """Search for the modules that must compute in float32; None if they do not fix the fault, or only many do. Modules
    of operators that make inf or NaN are tried first, then those that add most to the error of the step."""
    num_replays, num_modules = 0, len(traced.modules)

    def fixes(kept: frozenset[str]) -> bool:
        nonlocal num_replays
        num_replays += 1
        return case.is_fixed_by(Variant(kept=kept))

    origins = [origin for origin in traced.found if origin.phase != "update"]
    ranked = [*dict.fromkeys(_suspects(origins, traced.modules))]
    if not ranked or not fixes(frozenset(ranked)):
        ranked = [*dict.fromkeys([*ranked, *(call.module for call in by_error if call.module)])]
        num_modules = max(num_modules, len(ranked))
        if not ranked or not fixes(frozenset(ranked)):
            return None
    found = smallest_set(ranked, fixes, int(max(_FEW, num_modules * _FEW_SHARE)))
    if found is None:
        return None
    return Culprits(
        found, SmallestSet(num_replays=num_replays, num_modules=num_modules, num_needed=len(found)), tuple(origins)
    )


def calls_by_error(case: LossCase) -> list[Call]:
    """The last call of each stretch of a module's or a line's calls, by how much its error exceeds that before it."""
    own = record_step(Variant(precision=case.precision).replay(case.examined))
    pairs = matched(own, record_step(case.examined.baseline()))
    forward = [pair for pair in pairs if pair[0].call.phase == "forward"]
    growth: list[tuple[float, Call]] = []
    before = 0.0
    for _, of in groupby(forward, key=lambda pair: (pair[0].call.module, pair[0].call.place)):
        last, exact = [*of][-1]
        error = last.error_beside(exact)
        if math.isfinite(before):
            growth.append((error / max(before, last.roundoff), last.call))
        before = error
    return [call for _, call in sorted(growth, key=lambda known: -known[0])]


def _suspects(origins: Sequence[NonfiniteOrigin], modules: Iterable[str]) -> list[str]:
    """Suspects in order: the module of the first inf or NaN, the modules of the others, and before an origin outside
    the model all, the latest first."""
    own = [origin.call.module for origin in origins]
    return [name for name in (*own, *(() if all(own) else [*modules][::-1])) if name]
