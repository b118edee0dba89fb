"""The same step in float32 and in a training's own precision, call by call."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import Replay
from ampsweep.doctor.side_by_side.recorded_step import RandomRounding, RecordedCall, matched, record_step, to_nearest
from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.calls import Call, Site, observe
from ampsweep.observe.operators import schema_of

ROUNDINGS: Final = 4.0  # an unexplained error is larger than that of rounded steps by this: kernels round within, too
_COARSE: Final = 2.0**-3  # the smallest relative error of torch's own operators that counts; trainings bear 5 %
NO_DIGIT: Final = 0.5  # the relative error of a result without a single correct bit
_DETERMINED: Final = 0.01  # the largest error by float32's own roundoff in a well-determined result

Rounds = Callable[[Site, Tensor, torch.dtype], Tensor]  # changes a float32 value of a call that has a coarser dtype


@dataclass(frozen=True)
class ComparedCall:
    own: RecordedCall
    baseline: RecordedCall
    error: float  # relative error of the results, in the 2-norm
    explained: float  # by its inputs' errors and the dtype; inf if rounded steps do not make this call


class SideBySide:
    """The same step in float32 and in the training's own precision, after `num_before` steps in float32."""

    def __init__(self, examined: ExaminedTraining, num_before: int = 0, own: Replay | None = None) -> None:
        self._baseline, self._own = examined.baseline(), own or examined.replay()
        for _ in range(num_before):
            self._baseline.step()
        self.state = self._baseline.state()
        self.exact = record_step(self._baseline)
        recorded = record_step(self._own, self.state)
        self._partners = {own.site: own.call for own in recorded}
        self.own = [own for own in recorded if own.results]
        self._known: dict[Site, list[Tensor]] = {}

    def compared(self) -> list[ComparedCall]:
        """Compare all calls. Other choices than float32's (the lowest in a mask, experts) or random numbers, which from
        the same seed another dtype may draw differently, are taken as known."""
        if chosen := [own for own, exact in matched(self.own, self.exact) if _chooses(own, exact)]:
            self.take_as_known(chosen)
            self.exact = self.float32_step(lambda _, tensor, __: tensor)
        nearest, random = self._errors(to_nearest), self._errors(RandomRounding(self._baseline.device))
        explained = {site: max(nearest.get(site, math.inf), error) for site, error in random.items()}
        return [
            ComparedCall(own, exact, own.error_beside(exact), explained.get(own.site, math.inf))
            for own, exact in matched(self.own, self.exact)
        ]

    def has_lost_all_digits(self, call: ComparedCall) -> bool:
        """Return True if no digit is right, although float32 determines the values well, unlike a difference of close
        numbers, and they are within the range of the dtype."""
        is_known = math.isfinite(call.explained)
        if not is_known or call.error < NO_DIGIT or self._roundoff.get(call.own.site, math.inf) > _DETERMINED:
            return False
        dtype = next(dtype for dtype in call.own.call.outputs if dtype.is_floating_point)
        return any(bool((result.abs() >= torch.finfo(dtype).tiny).any()) for result in call.baseline.results)

    def is_unexplained(self, call: ComparedCall) -> bool:
        """Return True if inputs and dtype do not explain the error of a call, or of its culprit."""
        limit = ROUNDINGS * call.explained
        if call.error <= max(limit, call.own.roundoff):
            return False
        culprit = self.culprit(call)
        is_of_torch = culprit is call.own and culprit.call.operator.startswith("aten.")
        return not is_of_torch or call.error > max(limit, _COARSE)

    def culprit(self, call: ComparedCall) -> RecordedCall:
        """The call that made an error: this or, if float32 lacks the call right before (a fast path), that."""
        before = self.own[max(self.own.index(call.own) - 1, 0)]
        return call.own if before.site in {exact.site for exact in self.exact} else before

    def modules_until(self, culprit: RecordedCall) -> list[str]:
        """The module of a call and those that computed in half precision before it, the nearest first."""
        before = self.own[: self.own.index(culprit)]
        half = [own for own in before if own.roundoff > torch.finfo(torch.float32).eps]
        return [*dict.fromkeys(own.call.module for own in (culprit, *reversed(half)) if own.call.module)]

    def take_as_known(self, calls: Sequence[RecordedCall]) -> None:
        """Use what these calls return in the training's own precision in all float32 steps, which then explain it."""
        sites = {call.call.index: call.site for call in calls}

        def keep(call: Call, _: object, __: object, result: Any) -> None:
            if (site := sites.get(call.index)) is not None:
                self._known[site] = [tensor.detach().clone() for tensor in tensors_in(result)]

        self._own.restore(self.state)
        self._own.read_ahead()
        with observe(self._own.model, keep, places=False):
            self._own.step()

    def float32_step(self, rounds: Rounds) -> list[RecordedCall]:
        """Record the float32 step with known results inserted, and with the other arguments and results of each call
        that have a coarser dtype in the other step changed by `rounds`."""

        def rounded(site: Site, values: Any, dtypes: Iterable[torch.dtype]) -> Any:
            remaining = iter(dtypes)

            def of(value: Tensor) -> Tensor:
                dtype = next(remaining, None)
                if value.dtype != torch.float32 or dtype is None or not dtype.is_floating_point or value.is_sparse:
                    return value
                is_coarser = torch.finfo(dtype).eps > torch.finfo(torch.float32).eps
                return rounds(site, value, dtype) if is_coarser else value

            return map_tensors(values, of)

        def around(site: Site, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            if (partner := self._partners.get(site)) is None:
                return func(*args, **kwargs)
            result = func(*(args if schema_of(func).is_mutable else rounded(site, args, partner.inputs)), **kwargs)
            made = [*tensors_in(result)]
            for tensor, value in zip(made, self._known.get(site) or rounded(site, made, partner.outputs), strict=True):
                if tensor is not value and tensor.shape == value.shape:  # other choices make other shapes
                    tensor.copy_(value)
            return result

        return record_step(self._baseline, self.state, around)

    @cached_property
    def _roundoff(self) -> dict[Site, float]:
        """The errors that float32's own roundoff leaves."""
        rounding = RandomRounding(self._baseline.device)
        return self._errors(lambda tensor, _: rounding(tensor, torch.float32))

    def _errors(self, rounds: Callable[[Tensor, torch.dtype], Tensor]) -> dict[Site, float]:
        recorded = self.float32_step(lambda _, tensor, dtype: rounds(tensor, dtype))
        return {call.site: call.error_beside(exact) for call, exact in matched(recorded, self.exact)}


def _chooses(own: RecordedCall, exact: RecordedCall) -> bool:
    return own.choices != exact.choices or (own.draws and own.error_beside(exact) > _COARSE)
