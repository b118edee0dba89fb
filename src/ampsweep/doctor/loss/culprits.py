"""The modules that must compute in float32 for a fault to be gone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ampsweep.doctor.loss.fault import NOT_FINITE, LossCase
from ampsweep.doctor.loss.findings import MendingSet
from ampsweep.doctor.loss.origins import NonfiniteOrigin, OriginTracer, trace_origins
from ampsweep.doctor.loss.variant import Kept, OwnCalls, Variant
from ampsweep.doctor.side_by_side.recorded import matched, record_step, relative_error

_FEW: Final = 8
_FEW_SHARE: Final = 0.25
"""The modules, and the share of all, that may be kept in float32 for a set to be a finding: else another mode is."""


@dataclass(frozen=True, kw_only=True)
class Culprits:
    """A set that mends a fault by computing in float32, and does not without any one of them."""

    kept: tuple[Kept, ...]
    mending: MendingSet
    origins: tuple[NonfiniteOrigin, ...]
    """Those of inf and NaN in the step that showed the fault first; empty where everything was finite."""


def smallest_set(
    ranked: Sequence[Kept], mends: Callable[[frozenset[Kept]], bool], most: int
) -> tuple[Kept, ...] | None:
    """Find the culprits among suspects, in the order that these have: one binary search for each.

    Args:
        mends: the test; the empty set is known not to mend, and all suspects to mend.
        most: the largest set that is worth finding; None is returned for a larger one.
    """
    found: list[Kept] = []
    end = len(ranked)
    while not found or not mends(frozenset(found)):
        if len(found) >= most:
            return None
        fails, works = 0, end
        while works - fails > 1:
            middle = (fails + works) // 2
            if mends(frozenset([*ranked[:middle], *found])):
                works = middle
            else:
                fails = middle
        end = works - 1
        found.insert(0, ranked[end])
    return tuple(found)


def trace_fault(case: LossCase) -> OriginTracer:
    """Find the origins of inf and NaN in the step that shows the fault; in the first one where the loss is finite.

    What float32 makes inf or NaN at the same place, such as the logarithm of a zero that is never used, is no origin.
    """
    assert case.fault is not None
    num_before = case.fault.replayed - 1 if case.fault.sign in NOT_FINITE else 0
    tracer = trace_origins(Variant(precision=case.precision).replay(case.patient), num_before)
    if any(not one.is_range for one in tracer.origins):
        meant = {one.site for one in trace_origins(case.patient.baseline(), num_before).origins}
        tracer.origins = [one for one in tracer.origins if one.site not in meant]
    return tracer


def find_culprits(case: LossCase) -> Culprits | None:
    """Search for what must compute in float32; None if nothing mends the fault, or no few modules do.

    One replay names the operators that make inf or NaN; what calls them comes first. If that does not mend the fault,
    the modules follow in which the error of the step grows most.
    """
    tracer = trace_fault(case)
    num_replays, num_modules = 1, len(tracer.modules) + 1
    origins = [one for one in tracer.origins if one.phase != "update"]

    def mends(kept: frozenset[Kept]) -> bool:
        nonlocal num_replays
        num_replays += 1
        return case.mends(Variant(kept=kept))

    ranked = [*dict.fromkeys(_suspects(origins))]
    if not ranked or not mends(frozenset(ranked)):
        ranked = [*dict.fromkeys([*ranked, *_by_error(case)])]
        num_replays += 1
        num_modules = max(num_modules, len(ranked) + 1)
        if not ranked or not mends(frozenset(ranked)):
            return None
    found = smallest_set(ranked, mends, int(max(_FEW, num_modules * _FEW_SHARE)))
    if found is None:
        return None
    mending = MendingSet(num_replays=num_replays, num_modules=num_modules)
    return Culprits(kept=found, mending=mending, origins=tuple(origins))


def _by_error(case: LossCase) -> Sequence[Kept]:
    """Rank what computes by how much larger the error of its results is than of those before, the most first."""
    own = record_step(Variant(precision=case.precision).replay(case.patient))
    pairs = matched(own, record_step(case.patient.baseline()))
    forward = [pair for pair in pairs if pair[0].call.phase == "forward"]
    growth: dict[Kept, float] = {}
    before = 0.0
    for module, of in groupby(forward, key=lambda pair: pair[0].call.module):
        last, exact = [*of][-1]
        error = relative_error(last.results, exact.results)
        kept = _kept_for(module)
        if math.isfinite(before):
            growth[kept] = max(growth.get(kept, 0.0), error / max(before, last.roundoff))
        before = error
    return sorted(growth, key=lambda one: growth[one], reverse=True)


def _suspects(origins: Sequence[NonfiniteOrigin]) -> list[Kept]:
    """Suspects, the first one first: the maker of the first inf or NaN, the other modules that make some, those
    that made the inputs of an origin outside of any module, and last what only lines of code can change."""
    owners = [_kept_for(one.call.module) for one in origins]
    sources = [_kept_for(name) for one in origins if not one.call.module for name in one.sources]
    return [*owners[:1], *sorted([*owners[1:], *sources], key=lambda one: isinstance(one, OwnCalls))]


def _kept_for(module: str | None) -> Kept:
    """The smallest thing that can be kept in float32 and has the calls of a module in it."""
    return module or OwnCalls(module)
