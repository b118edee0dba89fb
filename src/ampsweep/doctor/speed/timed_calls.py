"""The operators of a step with their times, and the host's time between them."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic, perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.speed.bare_training import BareTraining
from ampsweep.monitors.step_clock import Moments
from ampsweep.tracing.calls import Call, observe
from ampsweep.tracing.flops import formulas
from ampsweep.tracing.ledger import tensors_in

_MAX_PASSES: Final = 7
_MIN_PASSES: Final = 4
_LONGER: Final = 3.0
"""Passes may take this much longer than they should until there are enough of them."""
_SLICE_MS: Final = 20.0
"""With too few passes a shorter stretch between operators may be another process's turn."""
_MIN_IDLE_MS: Final = 0.3
"""A stretch between two operators that is shorter is the framework's own: autograd, dispatch, calls of modules."""
_MIN_IDLE_RATIO: Final = 8.0
"""Such a stretch is longer than the median one by this factor, as those of a busy machine are all long."""


@dataclass(frozen=True, slots=True, eq=False)
class TimedCall:
    """A call of an operator with its time and its work."""

    call: Call
    ms: float
    """The least of several steps: the load of others makes an operator longer, never shorter."""
    flops: int = 0
    """Operations of a matrix product, a convolution or attention; 0 for all else."""
    num_bytes: int = 0
    """Those of the tensors that it takes and returns."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Sizes of the tensors that it takes."""
    parameter: str | None = None
    """The parameter that a cast copies."""
    cast_up: int | None = None
    """The index of the cast to float32 that the values of a cast to half precision come from."""
    idle_ms: float = 0.0
    """Time of the host's own code right before it, as far as it is more than the framework's."""
    reads_device: bool = False
    """The host waits for the device in it, where the device has a queue."""

    @property
    def is_cast(self) -> bool:
        """Tell whether it makes a copy of a tensor in another floating-point dtype."""
        return self.call.is_cast

    @property
    def is_float32(self) -> bool:
        """Tell whether it computes in float32: no floating-point argument or result has another dtype."""
        floating = {dtype for dtype in (*self.call.inputs, *self.call.outputs) if dtype.is_floating_point}
        return floating == {torch.float32}

    @property
    def is_half(self) -> bool:
        """Tell whether it takes or returns half precision and casts nothing."""
        dtypes = {*self.call.inputs, *self.call.outputs}
        return not self.is_cast and bool(dtypes & {torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class TimedStep:
    """The operators of one step in their order."""

    calls: tuple[TimedCall, ...]
    num_passes: int
    """Steps that the times are the least of."""

    @property
    def operators_ms(self) -> float:
        return sum(one.ms for one in self.calls)

    @property
    def idle_ms(self) -> float:
        """The time of the host's own code between operators, as far as it is more than the framework's."""
        return sum(one.idle_ms for one in self.calls)

    def of_phases(self, *phases: str) -> list[TimedCall]:
        return [one for one in self.calls if one.call.phase in phases]


Origin = tuple[str | None, str | None, str, str]
"""Module, line, operator and phase of calls."""


def by_origin(calls: Iterable[TimedCall]) -> dict[Origin, list[TimedCall]]:
    """Put together the calls that come from one line of one module; casts, which float32 lacks, are left out."""
    found: dict[Origin, list[TimedCall]] = defaultdict(list)
    for one in calls:
        if not one.is_cast:
            found[one.call.module, one.call.place, one.call.operator, one.call.phase].append(one)
    return found


def timed_in_turn(trainings: Sequence[BareTraining], moments: Moments, *, seconds: float) -> list[TimedStep]:
    """Time each operator of a step of some trainings, in turn for so many seconds; twice at least if they suffice."""
    end_s = monotonic() + seconds
    notes = [_Notes(training, moments) for training in trainings]
    for note in notes:
        note.take_first()
    late_s = end_s + (_LONGER - 1) * seconds
    while notes[0].num_passes < _MAX_PASSES:
        if monotonic() > (end_s if notes[0].num_passes >= _MIN_PASSES else late_s):
            break
        for note in notes:
            note.take()
    return [note.timed_step() for note in notes]


class _Notes:
    """All that passes over the step of one training have shown so far."""

    def __init__(self, training: BareTraining, moments: Moments) -> None:
        self._training, self._moments = training, moments
        self._first: list[TimedCall] = []
        self._operators: list[str] = []
        self._ms: list[list[float]] = []
        self._idle_ms: list[list[float]] = []
        self._around: list[tuple[Any, Any, float, float]] = []

    @property
    def num_passes(self) -> int:
        return len(self._ms)

    def take_first(self) -> None:
        """Take a step and note what each operator works on."""
        study = _Study(self._training.model)

        def on_call(call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
            self._first.append(study.of(call, args, kwargs, result))

        self._observe(on_call, places=True)
        self._operators = [one.call.operator for one in self._first]
        self._add()

    def take(self) -> None:
        """Take a step for its times alone."""
        seen: list[str] = []
        self._observe(lambda call, *_: seen.append(call.operator), places=False)
        if seen == self._operators:  # a step that takes another path has other operators
            self._add()
        else:
            self._ms.append([float("inf")] * len(self._first))
            self._idle_ms.append([float("inf")] * len(self._first))

    def timed_step(self) -> TimedStep:
        """The least times of all passes."""
        own_ms = _empty_ms(self._moments)
        passes = self._idle_ms[1:] or [[0.0] * len(self._first)]  # the first has looked for places
        least = [min(times) for times in zip(*passes, strict=True)]
        least = [0.0 if value == float("inf") else value for value in least]
        usual = statistics.median(least) if least else 0.0
        limit = max(_MIN_IDLE_MS if len(passes) + 1 >= _MIN_PASSES else _SLICE_MS, _MIN_IDLE_RATIO * usual)
        calls = [
            replace(call, ms=max(min(times) - own_ms, 0.0), idle_ms=idle - usual if idle > limit else 0.0)
            for call, times, idle in zip(self._first, zip(*self._ms, strict=True), least, strict=True)
        ]
        return TimedStep(tuple(calls), self.num_passes)

    def _observe(self, on_call: Callable[..., None], *, places: bool) -> None:
        self._around = []
        moments, noted = self._moments, self._around

        def around(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            began_s, start = perf_counter(), moments.now()
            result = operator(*args, **kwargs)
            noted.append((start, moments.now(), began_s, perf_counter()))
            return result

        moments.wait()
        with observe(self._training.model, on_call, around=around, places=places):
            self._training.step()

    def _add(self) -> None:
        self._ms.append([self._moments.between_ms(start, end) for start, end, _, _ in self._around])
        ends = [self._around[0][2] if self._around else 0.0, *(end_s for *_, end_s in self._around)]
        self._idle_ms.append(
            [1e3 * (began_s - end_s) for (_, _, began_s, _), end_s in zip(self._around, ends, strict=False)]
        )


class _Study:
    """The work of operators: sizes, arithmetic, and where the tensors that casts copy come from."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._formulas = formulas()
        self._parameters = {p.untyped_storage().data_ptr(): name for name, p in model.named_parameters()}
        self._cast_up: dict[int, int] = {}
        """Storages whose values come from a cast to float32 -> the index of that cast."""

    def of(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> TimedCall:
        """The call as far as it is known without times."""
        taken, made = [*tensors_in(args), *tensors_in(kwargs)], [*tensors_in(result)]
        formula = self._formulas.get(_packet(call.operator))
        cast_up = self._trace(call, taken, made)
        return TimedCall(
            call=call,
            ms=0.0,
            flops=0 if formula is None else int(formula(*args, **kwargs, out_val=result)),
            num_bytes=sum(one.nbytes for one in {id(one): one for one in (*taken, *made)}.values()),
            sizes=tuple(tuple(one.shape) for one in taken),
            parameter=self._parameters.get(_storage(taken[0])) if call.is_cast else None,
            cast_up=cast_up,
            reads_device=reads_device(call.operator, taken, made),
        )

    def _trace(self, call: Call, taken: Iterable[Tensor], made: Iterable[Tensor]) -> int | None:
        """Follow the values of casts to float32; return where those of a cast to half precision come from."""
        origins = [self._cast_up[one] for one in map(_storage, taken) if one in self._cast_up]
        origin = origins[0] if origins else None
        is_down = call.is_cast and call.outputs[0] in (torch.float16, torch.bfloat16)
        passed_on = (None if is_down else call.index) if call.is_cast else origin
        for one in map(_storage, made):
            self._cast_up.pop(one, None)
            if passed_on is not None:
                self._cast_up[one] = passed_on
        return origin if is_down and call.phase == "forward" else None


def reads_device(operator: str, taken: Sequence[Tensor], made: Sequence[Tensor]) -> bool:
    """Tell whether the host needs a value of the device to go on after this operator.

    A number or a number of results is read, or a tensor is copied to the host.
    """
    if operator in _READING:
        return True
    hosts = [one.device.type == "cpu" for one in made]
    return bool(hosts) and all(hosts) and any(one.device.type != "cpu" for one in taken)


_READING: Final = frozenset(
    (
        "aten._local_scalar_dense",
        "aten.nonzero",
        "aten.equal",
        "aten.masked_select",
        "aten._unique2",
        "aten.unique_dim",
        "aten.unique_consecutive",
        "aten.bincount",
    )
)


def _packet(operator: str) -> Any:
    space, _, name = operator.partition(".")
    return getattr(getattr(torch.ops, space, None), name, None) if space == "aten" else None


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _empty_ms(moments: Moments) -> float:
    """The time that is measured around an operator that does nothing."""
    tensor, detach = torch.zeros(()), torch.ops.aten.detach.default
    times = []
    for _ in range(50):
        start = moments.now()
        detach(tensor)
        times.append(moments.since_ms(start))
    return min(times)
