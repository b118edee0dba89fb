"""The errors that a dtype explains: those of a float32 step whose values are rounded wherever the other step rounds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ampsweep.doctor.replay import Replay, ReplayState
from ampsweep.doctor.side_by_side.recorded import (
    Key,
    Noise,
    RecordedCall,
    Rounds,
    matched,
    record_step,
    relative_error,
    rounding,
)
from ampsweep.tracing.calls import Site
from ampsweep.tracing.ledger import tensors_in

_SEEDS: Final = (None, 0)
"""Those of the steps whose errors are taken: one rounds to the nearest number, one at random."""


class ExplainedErrors:
    """The relative errors of the results of a float32 step under the roundings of another step, by call.

    Each operator computes in float32; its arguments and results are rounded to the dtypes that the matching call of the
    other step has. So the error of a result holds all that its inputs' errors and the dtype explain, whatever the
    operator does to errors.

    Args:
        baseline: a replay in float32.
        state: the state to step from.
        exact: the recorded float32 step from there.
        partners: by the site of a call of that step the matching call of the other step.
        known: by the same site the results that a call has in the other step: what comes after has their error.
    """

    def __init__(
        self,
        baseline: Replay,
        state: ReplayState,
        exact: Sequence[RecordedCall],
        partners: Mapping[Site, RecordedCall],
        known: Mapping[Site, Sequence[Tensor]],
    ) -> None:
        self._baseline, self._state, self._exact, self._partners, self._known = baseline, state, exact, partners, known
        found = [self._errors(rounding(seed)) for seed in _SEEDS]
        self.largest: dict[Key, float] = {key: max(one.get(key, 0.0) for one in found) for key in found[0]}
        """The largest error of each call."""

    def in_float32(self) -> dict[Key, float]:
        """The same errors if values are changed by float32's own unit roundoff: how well float32 determines them."""
        noise = Noise(0)
        return self._errors(lambda tensor, _: noise.times(tensor, torch.finfo(torch.float32).eps), everywhere=True)

    def _errors(self, rounds: Rounds, *, everywhere: bool = False) -> dict[Key, float]:
        self._baseline.restore(self._state)

        def around(site: Site, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            partner = self._partners.get(site)
            if partner is None:
                return func(*args, **kwargs)
            known = self._known.get(site)
            if func._schema.is_mutable:
                result = func(*args, **kwargs)
                if known is not None:
                    return replaced(func, result, known)
                for one, dtype in zip(tensors_in(result), partner.call.outputs, strict=False):
                    one.copy_(_as_in(one, dtype, rounds, everywhere))
                return result
            dtypes = iter(partner.call.inputs)
            result = func(*tree_map(lambda one: _next(one, dtypes, rounds, everywhere), args), **kwargs)
            if known is not None:
                return replaced(func, result, known)
            dtypes = iter(partner.call.outputs)
            return tree_map(lambda one: _next(one, dtypes, rounds, everywhere), result)

        recorded = record_step(self._baseline, around=around)
        return {exact.key: relative_error(one.results, exact.results) for one, exact in matched(recorded, self._exact)}


def _next(value: Any, dtypes: Iterator[torch.dtype], rounds: Rounds, everywhere: bool) -> Any:
    """Round a tensor to the next of the dtypes; whatever else there is takes none of them."""
    return _as_in(value, next(dtypes, None), rounds, everywhere) if isinstance(value, Tensor) else value


def _as_in(value: Tensor, dtype: torch.dtype | None, rounds: Rounds, everywhere: bool) -> Tensor:
    """Round a float32 tensor to the dtype that it has in the other step, if that is a coarser one."""
    if value.dtype != torch.float32 or dtype is None or not dtype.is_floating_point:
        return value
    return rounds(value, dtype) if everywhere or torch.finfo(dtype).eps > torch.finfo(torch.float32).eps else value


def replaced(func: Any, result: Any, known: Sequence[Tensor]) -> Any:
    """The known values in place of an operator's result, which stays if its shape is another: it follows from other
    choices."""
    values = iter(known)

    def in_place_of(value: Tensor) -> Tensor:
        values_known = next(values)
        if values_known.shape != value.shape:
            return value
        return value.copy_(values_known) if func._schema.is_mutable else values_known.to(value.device, value.dtype)

    return tree_map(lambda one: in_place_of(one) if isinstance(one, Tensor) else one, result)
