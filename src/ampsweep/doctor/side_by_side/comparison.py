"""The same step in float32 and in a training's own precision, call by call."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.side_by_side.recorded_step import Noise, RecordedCall, Rounds, matched, record_step, to_nearest
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.calls import Call, Site, observe
from ampsweep.observe.operators import schema_of

ROUNDINGS: Final = 4.0
"""Factor by which an unexplained error exceeds the largest error of perturbed steps: a kernel may round intermediate
values, each time as much as its result."""
_COARSE: Final = 2.0**-3
"""The smallest relative error that counts for torch's own operators: fewer than three bits of the result are right.
Some of torch's kernels (layer norm's backward on a CPU) leave errors of 5 % in bfloat16, which no training notices."""
NO_DIGIT: Final = 0.5  # the relative error of a result without a single correct bit
_DETERMINED: Final = 0.01  # the largest error by float32's own roundoff in a well-determined result


@dataclass(frozen=True, kw_only=True)
class ComparedCall:
    own: RecordedCall
    baseline: RecordedCall
    error: float  # relative error of the results, in the 2-norm
    explained: float
    """The largest error that the errors of the inputs and the dtype explain; inf if unknown, because the step does not
    make this call when its values change a little."""
    determined: float = math.inf  # the error that float32's own roundoff leaves; measured only if some call is wrong

    @property
    def is_wrong(self) -> bool:
        """True if no digit is right, although the values are within the range of the dtype."""
        if self.error < NO_DIGIT:
            return False
        dtype = next((dtype for dtype in self.own.call.outputs if dtype.is_floating_point), torch.float32)
        return any(bool((result.abs() >= torch.finfo(dtype).tiny).any()) for result in self.baseline.results)

    @property
    def has_lost_all_digits(self) -> bool:
        """True if no digit is right and float32 determines the value well, unlike a difference of close numbers."""
        return self.is_wrong and self.determined <= _DETERMINED


class SideBySide:
    """The same step in float32 and in the training's own precision, after `num_before` steps in float32."""

    def __init__(self, examined: ExaminedTraining, num_before: int = 0) -> None:
        self.baseline, self._own = examined.baseline(), examined.replay()
        for _ in range(num_before):
            self.baseline.step()
        self.state = self.baseline.state()
        self.exact = record_step(self.baseline)
        self._known: dict[Site, list[Tensor]] = {}
        self.own = record_step(self._own, self.state)
        self.pairs = [*matched(self.own, self.exact)]
        self._draw_the_same()
        self.take_as_known([own for own, baseline in self.pairs if own.choices != baseline.choices])

    def compared(self) -> list[ComparedCall]:
        device, eps = self.baseline.device, torch.finfo(torch.float32).eps
        nearest, random = (self._explained_errors(rounds) for rounds in (to_nearest, Noise(device).round))
        found = []
        for own, baseline in self.pairs:
            explained = max((errors[own.site] for errors in (nearest, random) if own.site in errors), default=math.inf)
            error = own.error_beside(baseline)
            found.append(ComparedCall(own=own, baseline=baseline, error=error, explained=explained))
        if not any(call.is_wrong for call in found):
            return found
        noise = Noise(device)
        determined = self._explained_errors(lambda tensor, _: noise.times(tensor, eps), everywhere=True)
        return [replace(call, determined=determined.get(call.own.site, math.inf)) for call in found]

    def _explained_errors(self, rounds: Rounds, *, everywhere: bool = False) -> dict[Site, float]:
        recorded = self._baseline_step(rounds, everywhere=everywhere)
        return {call.site: call.error_beside(exact) for call, exact in matched(recorded, self.exact)}

    def _baseline_step(self, rounds: Rounds, *, everywhere: bool = False) -> list[RecordedCall]:
        """Record the float32 step with known results inserted; other arguments and results are rounded to the dtypes of
        the matching call in the other step (`everywhere`: also where these are float32). The error of a result thus has
        everything that its inputs' errors and the dtype explain."""
        partners = {own.site: own.call for own, _ in self.pairs}

        def rounded(values: Any, dtypes: Iterable[torch.dtype]) -> Any:
            remaining = iter(dtypes)

            def of(value: Tensor) -> Tensor:
                dtype = next(remaining, None)
                if value.dtype != torch.float32 or dtype is None or not dtype.is_floating_point:
                    return value
                is_coarser = torch.finfo(dtype).eps > torch.finfo(torch.float32).eps
                return rounds(value, dtype) if everywhere or is_coarser else value

            return map_tensors(values, of)

        def around(site: Site, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            partner, known, is_mutable = partners.get(site), self._known.get(site), schema_of(func).is_mutable
            if partner is None:
                return func(*args, **kwargs)
            result = func(*(args if is_mutable else rounded(args, partner.inputs)), **kwargs)
            if known is not None:
                return replaced(func, result, known)
            if not is_mutable:
                return rounded(result, partner.outputs)
            for tensor, new in zip(tensors_in(result), tensors_in(rounded(result, partner.outputs)), strict=True):
                tensor.copy_(new)
            return result

        return record_step(self.baseline, self.state, around=around)

    def culprit(self, call: ComparedCall) -> RecordedCall:
        """The call that made an error: this or, if float32 lacks the call right before (a fast path), that."""
        both = {own.call.index for own, _ in self.pairs}
        before = self.own[max(self.own.index(call.own) - 1, 0)]
        return before if before.call.index not in both else call.own

    def is_unexplained(self, call: ComparedCall) -> bool:
        """Return True if inputs and dtype do not explain the error of a call, or of its culprit."""
        limit = ROUNDINGS * call.explained
        if call.error <= max(limit, call.own.roundoff):
            return False
        culprit = self.culprit(call)
        is_of_torch = culprit is call.own and culprit.call.operator.startswith("aten.")
        return not is_of_torch or call.error > max(limit, _COARSE)

    def modules_before(self, culprit: RecordedCall) -> list[str]:
        """The modules that computed in half precision before a call, the nearest first."""
        names = [
            recorded.call.module
            for recorded in self.own
            if recorded.call.index < culprit.call.index and recorded.call.module
            if any(dtype.itemsize < 4 and dtype.is_floating_point for dtype in recorded.call.outputs)
        ]
        return [name for name in dict.fromkeys(reversed(names)) if name != culprit.call.module]

    def take_as_known(self, calls: Sequence[RecordedCall]) -> None:
        """Use what these calls return in the training's own precision in all comparisons, which then explain it. So do,
        from the start calls with other numbers or indices than in float32: the lowest in a mask, other experts."""
        if not calls:
            return
        sites = {call.call.index: call.site for call in calls}

        def keep(call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
            if (site := sites.get(call.index)) is not None:
                self._known[site] = [tensor.detach().clone() for tensor in tensors_in(result)]

        self._own.restore(self.state)
        self._own.read_ahead()
        with observe(self._own.model, keep, places=False):
            self._own.step()

    def _draw_the_same(self) -> None:
        """Give the float32 steps the random numbers of the other step: from the same seed, dtypes can draw others."""
        drawn = [own for own, exact in self.pairs if own.draws and own.error_beside(exact) > own.roundoff]
        if drawn:
            self.take_as_known(drawn)
            self.exact = self._baseline_step(lambda tensor, _: tensor)
            self.pairs = [*matched(self.own, self.exact)]


def replaced(func: Any, result: Any, known: Sequence[Tensor]) -> Any:
    """The known values in place of an operator's result; a result with another shape, from other choices, stays."""
    values = iter(known)

    def in_place_of(value: Tensor) -> Tensor:
        new = next(values)
        if new.shape != value.shape:
            return value
        return value.copy_(new) if schema_of(func).is_mutable else new.to(value.device, value.dtype)

    return map_tensors(result, in_place_of)
