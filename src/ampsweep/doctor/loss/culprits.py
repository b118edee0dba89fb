"""The modules that must compute in float32: the smallest set of them, and the lines of code within."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Final

from ampsweep.doctor.functions import CalledFunction, watched_calls
from ampsweep.doctor.loss.fault import NOT_FINITE, LossCase
from ampsweep.doctor.loss.findings import MendingSet
from ampsweep.doctor.loss.origins import NonfiniteOrigin, OriginTracer, trace_origins
from ampsweep.doctor.loss.variant import Kept, Variant
from ampsweep.doctor.side_by_side.recorded import matched, record_step, relative_error

_MOST_CALLS: Final = 3
"""Function calls of a module that are worth changing one by one; of more, the module is simpler."""
_MOST_ROUNDS: Final = 3
"""Searches that are made at most, each for a fault that shows later than the one before."""
_FEW: Final = 8
_FEW_SHARE: Final = 0.25
"""The modules, and the share of all, that may be kept in float32 for a set to be a finding: else another mode is."""


@dataclass(frozen=True)
class SmallestSet:
    """A set that mends."""

    members: tuple[Kept, ...]
    """In the order of suspicion."""
    is_minimal: bool
    """True if the fault is back without any one of them; False if there were no tests left to see."""


class SetSearch:
    """A search for the smallest set that mends, among suspects in the order of suspicion.

    A set mends if all culprits are in it. To find k culprits among n suspects takes about k log2(n / k) tests (D.-Z. Du
    and F. Hwang, "Combinatorial Group Testing", 1993); if they come first, 2 log2(k) + k at most.

    Args:
        mends: the test, which takes replayed steps; the empty set is known not to mend.
        num_candidates: n of the bound.
        num_spent: replays that made the order.
    """

    def __init__(self, mends: Callable[[frozenset[Kept]], bool], *, num_candidates: int, num_spent: int = 0) -> None:
        self._mends, self.num_candidates = mends, num_candidates
        self.num_replays = num_spent
        self._known: dict[frozenset[Kept], bool] = {frozenset(): False}

    def bound(self, num_culprits: int) -> int:
        """The most replays that the search may take: 2 log2(n) + k."""
        return int(2 * math.log2(max(self.num_candidates, 1))) + num_culprits

    def find(self, ranked: Sequence[Kept], more: Callable[[], Sequence[Kept]] = tuple) -> SmallestSet | None:
        """Search for the set; None if all suspects together do not mend, or if tests run out before some do.

        `more` returns further suspects, and is called if those in `ranked` do not mend together.
        """
        ranked = list(ranked)
        failed, mended = self._gallop(ranked, 0)
        if mended is None and (others := [one for one in more() if one not in ranked]):
            ranked += others
            failed, mended = self._gallop(ranked, failed)
        if mended is None:
            return None
        while mended - failed > 1 and self._has_tests(1):
            middle = (failed + mended + 1) // 2
            if self._try(ranked[:middle]):
                mended = middle
            else:
                failed = middle
        num_doubtful = mended - (mended - failed == 1)  # without the last one it was tried
        doubtful, needed = ranked[:num_doubtful], ranked[num_doubtful:mended]
        while doubtful:
            *others, last = doubtful
            rest = frozenset([*others, *needed])
            if rest not in self._known and not self._has_tests(max(1, len(needed))):
                return SmallestSet((*doubtful, *needed), is_minimal=False)
            if not self._try(rest):
                needed = [last, *needed]
            doubtful = others
        return SmallestSet(tuple(needed), is_minimal=True)

    def _gallop(self, ranked: Sequence[Kept], failed: int) -> tuple[int, int | None]:
        """Find numbers of first suspects that do not mend and that do; None: not even all, or no tests are left."""
        size = failed + 1
        while failed < len(ranked) and self._has_tests(1):
            size = min(size, len(ranked))
            if self._try(ranked[:size]):
                return failed, size
            failed, size = size, 2 * size
        return failed, None

    def _has_tests(self, num_culprits: int) -> bool:
        return self.num_replays < self.bound(num_culprits)

    def _try(self, suspects: Iterable[Kept]) -> bool:
        key = frozenset(suspects)
        if key not in self._known:
            self.num_replays += 1
            self._known[key] = self._mends(key)
        return self._known[key]


@dataclass(frozen=True, kw_only=True)
class Culprits:
    """The smallest set that mends a fault by computing in float32."""

    kept: tuple[Kept, ...]
    """Modules, and `CalledFunction`s for what the model itself or the loss computes."""
    mending: MendingSet
    origins: tuple[NonfiniteOrigin, ...]
    """Those of inf and NaN in the step that showed the fault first; empty where everything was finite."""
    calls: tuple[CalledFunction, ...] = ()
    """The function calls of these that mend it in their place, if few do."""


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


class CulpritSearch:
    """The search for what must compute in float32.

    One replay names the operators that make inf or NaN; what calls them comes first. If that does not mend the fault,
    the modules follow in which the error of the step grows most.
    """

    def __init__(self, case: LossCase) -> None:
        self._case = case
        self._num_replays, self._num_modules = 0, 1
        self._origins: list[NonfiniteOrigin] = []

    def find(self) -> Culprits | None:
        """Search; None if nothing that was tried mends the fault, or no few modules do."""
        case, found = self._case, None
        for _ in range(_MOST_ROUNDS):
            found = self._round(() if found is None else found.kept)
            if found is None or len(found.kept) > max(_FEW, found.mending.num_modules * _FEW_SHARE):
                return None
            taken = Variant(kept=frozenset(found.kept), precision=case.precision).steps(case.patient, case.num_steps)
            later = None if taken.error is not None else case.judge.fault(taken.steps)
            if later is None or later.sign not in NOT_FINITE or case.patient.seconds_left <= 0:
                break
            case.fault = later
        assert found is not None
        return self._with_calls(found)

    def _with_calls(self, culprits: Culprits) -> Culprits:
        """Search for the function calls of the culprits that mend in their place."""
        whole: set[Kept] = set()
        calls: list[CalledFunction] = []
        num_replays = 0
        for culprit in culprits.kept:
            own = self._calls_of(culprit)
            others = frozenset(one for one in culprits.kept if one not in (culprit, *whole)) | frozenset(calls)
            search = SetSearch(lambda some, others=others: self._mends(others | some), num_candidates=len(own))  # type: ignore[misc]
            found = search.find(own)
            num_replays += search.num_replays
            if found is None or len(found.members) > _MOST_CALLS:
                return culprits
            whole.add(culprit)
            calls += [one for one in found.members if isinstance(one, CalledFunction)]
        mending = replace(
            culprits.mending,
            functions=[one.function for one in calls],
            places=[one.place for one in calls],
            num_call_replays=num_replays,
        )
        return replace(culprits, calls=tuple(calls), mending=mending)

    def _round(self, known: tuple[Kept, ...]) -> Culprits | None:
        """Search for what mends the fault up to the step that shows it."""
        tracer = trace_fault(self._case)
        self._num_modules = max(self._num_modules, len(tracer.modules) + 1)
        self._origins += [one for one in tracer.origins if one.phase != "update"]
        ranked = [*dict.fromkeys([*known, *_suspects(self._origins)])]
        search = SetSearch(self._mends, num_candidates=self._num_modules, num_spent=self._num_replays + 1)
        found = search.find(ranked, partial(self._by_error, search))
        self._num_replays = search.num_replays
        if found is None:
            return None
        return Culprits(
            kept=found.members,
            mending=MendingSet(
                num_replays=self._num_replays,
                most_replays=search.bound(len(found.members)),
                num_modules=search.num_candidates,
                is_minimal=found.is_minimal,
            ),
            origins=tuple(self._origins),
        )

    def _mends(self, kept: frozenset[Kept]) -> bool:
        return self._case.mends(Variant(kept=kept))

    def _by_error(self, search: SetSearch) -> Sequence[Kept]:
        """Rank what computes by how much larger the error of its results is than of those before, the most first."""
        patient = self._case.patient
        search.num_replays += 1
        own = record_step(Variant(precision=self._case.precision).replay(patient))
        pairs = matched(own, record_step(patient.baseline()))
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
        search.num_candidates = max(search.num_candidates, len(growth) + 1)
        return sorted(growth, key=lambda one: growth[one], reverse=True)

    def _calls_of(self, culprit: Kept) -> list[CalledFunction]:
        """The function calls that the own forward of a culprit makes, those at the lines of origins first."""
        case = self._case
        replay = Variant(precision=case.precision).replay(case.patient)
        name = culprit.module if isinstance(culprit, CalledFunction) else culprit
        if name is not None and type(replay.model.get_submodule(name)).__module__.startswith("torch."):
            return []  # there is no line that could be changed
        seen: dict[CalledFunction, None] = {}

        def on_call(call: CalledFunction, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if call.module == name and call.can_widen:
                seen[call] = None
            return func(*args, **kwargs)

        with watched_calls(replay, on_call):
            replay.step()
        first = next((one.call.forward or one.call for one in self._origins if one.call.module == name), None)
        if first is None:
            return list(seen)
        operator = first.operator.rpartition(".")[2]
        return sorted(
            seen, key=lambda one: (one.place != first.place, (one.function or "").rpartition(".")[2] != operator)
        )


def _suspects(origins: Sequence[NonfiniteOrigin]) -> list[Kept]:
    """Suspects, the first one first: the maker of the first inf or NaN, the other modules that make some, those
    that made the inputs of an origin outside of any module, and last what only lines of code can change."""
    owners = [_kept_for(one.call.module) for one in origins]
    sources = [_kept_for(name) for one in origins if not one.call.module for name in one.sources]
    return [*owners[:1], *sorted([*owners[1:], *sources], key=lambda one: isinstance(one, CalledFunction))]


def _kept_for(module: str | None) -> Kept:
    """The smallest thing that can be kept in float32 and has the calls of a module in it."""
    return module or CalledFunction(module)
