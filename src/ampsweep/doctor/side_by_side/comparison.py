"""The same step in float32 and in a training's own precision, call by call."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.patient import Patient
from ampsweep.doctor.side_by_side.recorded import (
    Noise,
    RecordedCall,
    Rounds,
    matched,
    record_step,
    to_nearest,
)
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.calls import Call, Site, observe
from ampsweep.observe.operators import schema_of

ROUNDINGS: Final = 4.0
"""Factor between the largest error that perturbed steps show and one that is unexplained: a kernel may round what it
computes on its way, each time as much as its result."""
_COARSE: Final = 2.0**-3
"""The least relative error of an operator of torch's own that counts: not three binary digits of its result are right.
torch's kernels are compared with float32 by its own tests; some (layer norm's backward on a CPU, for one) leave errors
of 5 % in bfloat16, which no training notices."""
NO_DIGIT: Final = 0.5
"""The relative error of a result of which no binary digit is right."""
_DETERMINED: Final = 0.01
"""The relative error that float32's own roundoff may leave in a result for it to be well determined there."""


@dataclass(frozen=True, kw_only=True)
class ComparedCall:
    """A call of the step in its own precision beside the same call in float32."""

    own: RecordedCall
    baseline: RecordedCall
    error: float
    """Relative error of the results, as their 2-norm has it."""
    explained: float
    """The largest that the errors of the inputs and the dtype explain; inf if nothing tells, because the step does not
    make this call when its values change a little."""
    determined: float = math.inf
    """The error that float32's own roundoff leaves; not looked for where no call is wrong."""

    @property
    def is_wrong(self) -> bool:
        """Tell whether a value has no right digit, although the dtype has numbers of its size."""
        if self.error < NO_DIGIT:
            return False
        dtype = next((one for one in self.own.call.outputs if one.is_floating_point), torch.float32)
        return any(bool((one.abs() >= torch.finfo(dtype).tiny).any()) for one in self.baseline.results)

    @property
    def has_lost_all_digits(self) -> bool:
        """Tell whether such a value is well determined in float32, as the difference of two close ones may be."""
        return self.is_wrong and self.determined <= _DETERMINED


class SideBySide:
    """The same step in float32 and in the training's own precision, from one state.

    Args:
        num_before: steps in float32 before it.
    """

    def __init__(self, patient: Patient, num_before: int = 0) -> None:
        self._baseline, self._own = patient.baseline(), patient.replay()
        for _ in range(num_before):
            self._baseline.step()
        self.state = self._baseline.state()
        self.exact = record_step(self._baseline)
        self._known: dict[Site, list[Tensor]] = {}
        self.own = record_step(self._own, self.state)
        self.pairs = [*matched(self.own, self.exact)]
        self._draw_the_same()
        self.take_as_known([own for own, baseline in self.pairs if own.choices != baseline.choices])

    def compared(self) -> list[ComparedCall]:
        """Compare all calls that the two steps have in common, in their order."""
        device, eps = self._baseline.device, torch.finfo(torch.float32).eps
        nearest, random = (self._explained_errors(rounds) for rounds in (to_nearest, Noise(device).round))
        found = [
            ComparedCall(
                own=own,
                baseline=baseline,
                error=own.error_beside(baseline),
                explained=max((one[own.site] for one in (nearest, random) if own.site in one), default=math.inf),
            )
            for own, baseline in self.pairs
        ]
        if not any(one.is_wrong for one in found):  # as in most trainings
            return found
        noise = Noise(device)
        determined = self._explained_errors(lambda tensor, _: noise.times(tensor, eps), everywhere=True)
        return [replace(one, determined=determined.get(one.own.site, math.inf)) for one in found]

    def _explained_errors(self, rounds: Rounds, *, everywhere: bool = False) -> dict[Site, float]:
        """The relative errors of the results of the float32 step under the roundings of the other step."""
        recorded = self._baseline_step(rounds, everywhere=everywhere)
        return {one.site: one.error_beside(exact) for one, exact in matched(recorded, self.exact)}

    def _baseline_step(self, rounds: Rounds, *, everywhere: bool = False) -> list[RecordedCall]:
        """Record the float32 step with known results put in, and all others rounded.

        Each operator computes in float32; its arguments and results are rounded to the dtypes that the matching call of
        the other step has. So the error of a result holds all that its inputs' errors and the dtype explain, whatever
        the operator does to errors.

        Args:
            everywhere: values are rounded where the other step computes in float32, too.
        """
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
            for one, other in zip(tensors_in(result), tensors_in(rounded(result, partner.outputs)), strict=True):
                one.copy_(other)
            return result

        return record_step(self._baseline, self.state, around=around)

    def culprit(self, call: ComparedCall) -> RecordedCall:
        """The call that made an error: this one or, right before it, the last one that float32 does not make.

        Such calls, of a fast path for half precision for example, have nothing to be compared with.
        """
        both = {own.call.index for own, _ in self.pairs}
        before = self.own[max(self.own.index(call.own) - 1, 0)]
        return before if before.call.index not in both else call.own

    def is_unexplained(self, call: ComparedCall) -> bool:
        """Tell whether the error of a call, or of the one right before it, has another cause than inputs and dtype."""
        limit = ROUNDINGS * call.explained
        if call.error <= max(limit, call.own.roundoff):
            return False
        culprit = self.culprit(call)
        is_of_torch = culprit is call.own and culprit.call.operator.startswith("aten.")
        return not is_of_torch or call.error > max(limit, _COARSE)

    def modules_before(self, culprit: RecordedCall) -> list[str]:
        """The modules that computed in half precision before a call, the nearest first."""
        names = [
            one.call.module
            for one in self.own
            if one.call.index < culprit.call.index and one.call.module
            if any(dtype.itemsize < 4 and dtype.is_floating_point for dtype in one.call.outputs)
        ]
        return [name for name in dict.fromkeys(reversed(names)) if name != culprit.call.module]

    def take_as_known(self, calls: Sequence[RecordedCall]) -> None:
        """Keep what these calls return in the training's own precision; all comparisons explain what follows from it.

        From the beginning this holds for calls that get other numbers or indices there than in float32, such as the
        lowest number of their dtype for a mask, or other experts for a token: no operator's error.
        """
        if not calls:
            return
        sites = {one.call.index: one.site for one in calls}

        def keep(one: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
            if (site := sites.get(one.index)) is not None:
                self._known[site] = [tensor.detach().clone() for tensor in tensors_in(result)]

        self._own.restore(self.state)
        self._own.read_ahead()
        with observe(self._own.model, keep, places=False):
            self._own.step()

    def _draw_the_same(self) -> None:
        """Have the float32 steps get the random numbers of the other step where they draw others.

        Of the same seed another dtype can draw other numbers, as CPUs do for normal ones. Those that are equal but for
        rounding stay.
        """
        drawn = [one for one, exact in self.pairs if one.draws and one.error_beside(exact) > one.roundoff]
        if drawn:
            self.take_as_known(drawn)
            self.exact = self._baseline_step(lambda tensor, _: tensor)
            self.pairs = [*matched(self.own, self.exact)]


def replaced(func: Any, result: Any, known: Sequence[Tensor]) -> Any:
    """The known values in place of an operator's result, which stays if its shape is another: it follows from other
    choices."""
    values = iter(known)

    def in_place_of(value: Tensor) -> Tensor:
        values_known = next(values)
        if values_known.shape != value.shape:
            return value
        return value.copy_(values_known) if schema_of(func).is_mutable else values_known.to(value.device, value.dtype)

    return map_tensors(result, in_place_of)
