"""The complaint `numerics`: the first operator whose error is larger than its inputs and its dtype explain."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.diagnosis import Change, DoctorFinding, TriedChange, module_name, where
from ampsweep.doctor.examined_training import ExaminedTraining, NotExaminedError
from ampsweep.doctor.replay import Replay
from ampsweep.doctor.side_by_side.comparison import NO_DIGIT, ROUNDINGS, ComparedCall, SideBySide
from ampsweep.doctor.side_by_side.recorded_step import matched, record_step, storages
from ampsweep.doctor.smallest_change import smallest_change
from ampsweep.doctor.state.half_integers import find_rounded_integers
from ampsweep.doctor.state.stuck_state import find_stuck_state
from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.monitors.observation_schedule import ObservationSchedule
from ampsweep.nested_tensors import tensors_in
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Call, observe
from ampsweep.records.numerics import INPUT_LAYER, RunNumerics
from ampsweep.text import number
from ampsweep.training.update_observers import WatchedUpdates

_STEPS_BEFORE: Final = 3  # steps in float32 before the second comparison, as initial zeros hide what follows
_MOST_POINTS: Final = 200
_MOST_BEFORE: Final = 3  # modules before the culprit that are tried in float32 as well
_MAGNITUDE_STEPS: Final = (1, 2, 4)  # the steps, counted from the first replayed, whose magnitudes are observed


@dataclass(frozen=True, kw_only=True)
class TriedInFloat32(TriedChange):
    error: float

    @property
    def sentence(self) -> str:
        return f"tried: its error is {_share(self.error)} then"


class ErrorFinding(DoctorFinding):
    complaint = "numerics"
    remedy = "compute it in float32"
    step: int
    dtype: str
    error: float  # the relative error of its results
    explained_error: float
    float32_error: float  # the error that float32's own rounding leaves in it
    is_in_both: bool  # float32 makes this call, too

    @property
    def where(self) -> str:
        module = f" of {module_name(self.modules[0])}" if self.modules else ""
        return f"{self.operator}{module}{self.at}"


class UnexplainedError(ErrorFinding):
    @property
    def sentence(self) -> str:
        error = f"{self.where} has an error of {_share(self.error)} in {self.dtype}"
        return f"{error}, where its inputs and the dtype explain {_share(self.explained_error)}"

    @property
    def evidence(self) -> list[str]:
        compared = (
            f"the relative error of the forward pass's values at step {self.step}, against float32 with the same "
            "weights and batch; float32 has no more than the explained error if its results are rounded to the dtype"
        )
        other = "float32 does not make this call at all: the code takes another path in half precision"
        return [compared] if self.is_in_both else [compared, other]


class NoDigitsLeft(ErrorFinding):
    template = "no digit of what {where} returns is right in {dtype}"

    @property
    def evidence(self) -> list[str]:
        if not math.isfinite(self.error):
            return [f"it contains inf or NaN at step {self.step}, where float32 has finite numbers"]
        return [
            f"its relative error at step {self.step} is {_share(self.error)}; float32's own rounding leaves "
            f"{_share(self.float32_error)} in it",
            "each operator is as exact as the dtype allows: the digits were lost when close numbers were subtracted, "
            "or when a large number, known only to its last digit, went through a function of small differences",
        ]


def _share(error: float) -> str:
    return f"{number(100 * error)} %" if math.isfinite(error) else str(error)


def examine_numerics(examined: ExaminedTraining) -> Iterator[DoctorFinding]:
    """Observe magnitudes in float32, then compare the first step in the two dtypes and, if it is right, a later step;
    raise NotExaminedError if the training computes in float32, or its steps raise an error."""
    if (error := examined.baseline_steps.error) is not None:
        raise NotExaminedError(f"its steps end with an error in float32, too ({type(error).__name__})")
    if not examined.is_baseline and (error := examined.own_steps.error) is not None:
        raise NotExaminedError(f"its steps end with an error ({type(error).__name__})")
    examined.numerics = _baseline_magnitudes(examined)
    if examined.is_baseline:
        raise NotExaminedError("it computes in float32 itself, and has nothing to be compared with")
    for num_before in (0, _STEPS_BEFORE):
        sides = SideBySide(examined, num_before)
        examined.facts["numerics/error_growth"] = growth(calls := sides.compared())
        rounded = None if num_before else find_rounded_integers(examined, sides)
        if (found := rounded or _first_wrong(examined, sides, calls)) is not None:
            yield found
            break
    yield from find_stuck_state(examined)


def _first_wrong(examined: ExaminedTraining, sides: SideBySide, calls: Sequence[ComparedCall]) -> ErrorFinding | None:
    for call in calls:
        if sides.is_unexplained(call):
            return _found(examined, sides, call, UnexplainedError)
        if call.has_lost_all_digits:
            return _found(examined, sides, call, NoDigitsLeft)
    return None


def growth(calls: Sequence[ComparedCall]) -> list[dict[str, object]]:
    """The error through the forward pass: of the last call of each module, in order."""
    known = [call for call in calls if 0 < call.explained < math.inf]
    ends = [call for call, after in pairwise(known) if after.own.call.module != call.own.call.module] + known[-1:]
    points = ((of.own.call, of.error, of.explained) for of in ends[:: -(-len(ends) // _MOST_POINTS) or 1])
    return [
        {"module": own.module or "", "operator": own.operator, "error": error, "explained": explained}
        for own, error, explained in points
    ]


def _found(examined: ExaminedTraining, sides: SideBySide, call: ComparedCall, kind: type[ErrorFinding]) -> ErrorFinding:
    culprit, after = sides.culprit(call), math.inf
    limit = NO_DIGIT if call.has_lost_all_digits else max(ROUNDINGS * call.explained, call.error / 10)
    modules = [*([culprit.call.module] if culprit.call.module else []), *sides.modules_before(culprit)[:_MOST_BEFORE]]

    def mends(replay: Replay) -> bool:
        nonlocal after
        changed = matched(record_step(replay, sides.state), sides.exact)
        after = next((own.error_beside(exact) for own, exact in changed if own.site == call.own.site), math.inf)
        return after < limit

    # The inputs may have lost their digits already: modules before the culprit are kept in float32, too. No code is
    # edited, which would move the lines that calls are matched by.
    change = smallest_change(examined, None, [modules[:end] for end in range(1, len(modules) + 1)], mends)
    return kind(
        **where(culprit.call),
        step=sides.state.step + 1,
        dtype=dtype_name(next(dtype for dtype in culprit.call.outputs if dtype.is_floating_point)),
        error=call.error,
        explained_error=call.explained,
        float32_error=call.determined,
        is_in_both=culprit is call.own,
        change=change or Change(),
        proof=None if change is None else TriedInFloat32(mends=True, error=after),
    )


def _baseline_magnitudes(examined: ExaminedTraining) -> RunNumerics:
    replay = examined.baseline()
    precision, began_at = replay.built.precision, replay.trainer.step
    schedule = ObservationSchedule(None, _MAGNITUDE_STEPS[-1])
    watch = NumericsWatch(replay.model, precision, schedule, is_compiled=examined.config.trainer.compile)
    replay.trainer.observers.append(WatchedUpdates(watch, precision))
    for step in range(1, _MAGNITUDE_STEPS[-1] + 1):
        if watch.numerics().steps and examined.seconds_left <= 0:
            break
        replay.read_ahead()
        with watch.look() if step in _MAGNITUDE_STEPS else nullcontext():
            replay.step()
        if step in _MAGNITUDE_STEPS:
            watch.read(began_at + step)
    found = watch.numerics()
    found.outside = _outside_autocast(examined)
    return found


def _outside_autocast(examined: ExaminedTraining) -> list[str]:
    """Layers whose values autocast never lowers; it lowers the same operators to bfloat16, which is fast everywhere."""
    replay = examined.replay(replace(PRECISION_MODES["amp_bf16"], fp32_modules=examined.config.precision.fp32_modules))
    with note_lowered_layers(replay.model, torch.bfloat16) as outside:
        replay.step()
    return sorted(outside)


@contextmanager
def note_lowered_layers(model: nn.Module, dtype: torch.dtype) -> Iterator[set[str]]:
    """Note which modules and parameters, and whether the input, neither compute in `dtype` nor are cast to it in a
    forward pass under autocast. The set is filled at the end: until then all outputs stay in memory, so that no other
    tensor gets their addresses."""
    outside: set[str] = set()
    names = {module: name for name, module in model.named_modules()}
    returned: dict[str, list[Tensor]] = defaultdict(list)
    cast: set[int] = set()

    def on_call(call: Call, args: Sequence[Any], _: dict[str, Any], __: Any) -> None:
        if call.phase == "forward" and call.is_cast and call.outputs[0] == dtype:
            cast.update(storages(args[0]))

    def on_input(module: nn.Module, args: Any) -> None:
        if module is model:
            returned[INPUT_LAYER].extend(tensors_in(args))

    def on_output(module: nn.Module, _: Any, output: Any) -> None:
        if module in names:
            returned[names[module]].extend(tensor.detach() for tensor in tensors_in(output))

    with ExitStack() as hooks:
        hooks.callback(register_module_forward_pre_hook(on_input).remove)
        hooks.callback(register_module_forward_hook(on_output).remove)
        hooks.enter_context(observe(model, on_call, places=False))
        yield outside
    wide = [(name, of) for name, of in returned.items() if all(tensor.dtype != dtype for tensor in of)]
    layers = (*wide, *model.named_parameters())
    outside.update(name for name, tensors in layers if storages(tensors).isdisjoint(cast))
