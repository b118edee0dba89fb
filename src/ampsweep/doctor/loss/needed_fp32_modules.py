"""The smallest set of modules that must compute in float32 to fix a fault."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ampsweep.doctor.loss.fault import NOT_FINITE, LossCase
from ampsweep.doctor.loss.findings import SmallestSet
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigin, OriginTracer, trace_origins
from ampsweep.doctor.loss.variant import Kept, OwnCalls, Variant
from ampsweep.doctor.side_by_side.recorded_step import matched, record_step

_FEW: Final = 8
_FEW_SHARE: Final = 0.25  # a larger set of modules is no finding: another precision mode is
_Fixes = Callable[[frozenset[Kept]], bool]


@dataclass(frozen=True)
class Culprits:
    """A minimal set that fixes a fault by computing in float32: leaving out any member brings the fault back."""

    kept: tuple[Kept, ...]
    mending: SmallestSet
    origins: tuple[NonfiniteOrigin, ...]  # of the first step that showed the fault


def smallest_set(ranked: Sequence[Kept], fixes: _Fixes, most: int) -> tuple[Kept, ...] | None:
    """Find the culprits among suspects by a binary search for each, in order; None if there are more than `most`. The
    empty set is known not to fix the fault, and the set of all suspects to fix it."""
    found: list[Kept] = []
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


def trace_fault(case: LossCase) -> OriginTracer:
    """Find the origins of inf and NaN in the step that shows the fault (the first step if the loss is finite). An inf
    or NaN that float32 makes at the same place, such as the logarithm of an unused zero, does not count."""
    assert case.fault is not None
    num_before = case.fault.replayed - 1 if case.fault.sign in NOT_FINITE else 0
    tracer = trace_origins(Variant(precision=case.precision).replay(case.examined), num_before)
    if any(not origin.is_range for origin in tracer.origins):
        meant = {origin.site for origin in trace_origins(case.examined.baseline(), num_before).origins}
        tracer.origins = [origin for origin in tracer.origins if origin.site not in meant]
    return tracer


def find_culprits(case: LossCase) -> Culprits | None:
    """Search for what must compute in float32; None if nothing fixes the fault, or only many modules do. The modules of
    operators that make inf or NaN are tried first, then the modules that add most to the error of the step."""
    tracer = trace_fault(case)
    num_replays, num_modules = 1, len(tracer.modules) + 1
    origins = [origin for origin in tracer.origins if origin.phase != "update"]

    def fixes(kept: frozenset[Kept]) -> bool:
        nonlocal num_replays
        num_replays += 1
        return case.is_fixed_by(Variant(kept=kept))

    ranked = [*dict.fromkeys(_suspects(origins))]
    if not ranked or not fixes(frozenset(ranked)):
        ranked = [*dict.fromkeys([*ranked, *_by_error(case)])]
        num_replays += 1
        num_modules = max(num_modules, len(ranked) + 1)
        if not ranked or not fixes(frozenset(ranked)):
            return None
    found = smallest_set(ranked, fixes, int(max(_FEW, num_modules * _FEW_SHARE)))
    if found is None:
        return None
    return Culprits(found, SmallestSet(num_replays=num_replays, num_modules=num_modules), tuple(origins))


def _by_error(case: LossCase) -> Sequence[Kept]:
    """Rank modules by how much larger the error of their results is than the error before them."""
    own = record_step(Variant(precision=case.precision).replay(case.examined))
    pairs = matched(own, record_step(case.examined.baseline()))
    forward = [pair for pair in pairs if pair[0].call.phase == "forward"]
    growth: dict[Kept, float] = {}
    before = 0.0
    for module, of in groupby(forward, key=lambda pair: pair[0].call.module):
        last, exact = [*of][-1]
        error = last.error_beside(exact)
        kept = module or OwnCalls(module)
        if math.isfinite(before):
            growth[kept] = max(growth.get(kept, 0.0), error / max(before, last.roundoff))
        before = error
    return sorted(growth, key=lambda kept: growth[kept], reverse=True)


def _suspects(origins: Sequence[NonfiniteOrigin]) -> list[Kept]:
    """Suspects in order: the module of the first inf or NaN, the modules of the others, the modules that fed an origin
    outside the model, and last whatever only lines of code can change."""
    owners = [origin.call.module or OwnCalls(origin.call.module) for origin in origins]
    sources = [name or OwnCalls(name) for origin in origins if not origin.call.module for name in origin.sources]
    return [*owners[:1], *sorted([*owners[1:], *sources], key=lambda kept: isinstance(kept, OwnCalls))]
