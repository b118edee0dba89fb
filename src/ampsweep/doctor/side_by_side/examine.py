"""The complaint `numerics`: the first operator whose error is larger than its inputs and its dtype explain."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.diagnosis import Change, DoctorFinding, TriedChange, where
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
from ampsweep.training.update_observers import WatchedUpdates

_STEPS_BEFORE: Final = 3  # steps in float32 before the compared one: initial zeros hide what follows
_MOST_MODULES: Final = 4  # that are tried in float32: the culprit's and those before it
_MAGNITUDE_STEPS: Final = 4  # in float32, whose magnitudes are observed


class LargeError(DoctorFinding):
    template = "{operator}{inside}{at} has an error of {error_pct} in {dtype}"
    complaint = "numerics"
    seen = ("a step in float32, rounded wherever {dtype} rounds, has an error of {explained_pct} there",)
    remedy = "compute it in float32"
    dtype: str
    error_pct: float  # the relative error of its results in a forward pass
    explained_pct: float


def examine_numerics(examined: ExaminedTraining) -> Iterator[DoctorFinding]:
    """Observe magnitudes in float32, then compare a step in the two dtypes; raise NotExaminedError if the training
    computes in float32, or its steps raise an error in float32."""
    if (error := examined.baseline_steps.error) is not None:
        raise NotExaminedError(f"its steps end with an error in float32, too ({type(error).__name__})")
    examined.numerics = _baseline_magnitudes(examined)
    if examined.is_baseline:
        raise NotExaminedError("it computes in float32 itself, and has nothing to be compared with")
    found: DoctorFinding | None = find_rounded_integers(examined)
    if found is None:
        sides = SideBySide(examined, _STEPS_BEFORE)
        found = _first_wrong(examined, sides, sides.compared())
    if found is not None:
        yield found
    yield from find_stuck_state(examined)


def _first_wrong(examined: ExaminedTraining, sides: SideBySide, calls: Sequence[ComparedCall]) -> LargeError | None:
    """The finding of the first wrong call: of torch's own operators only if keeping modules in float32 mends it."""
    call = next((call for call in calls if sides.is_unexplained(call) or sides.has_lost_all_digits(call)), None)
    if call is None:
        return None
    culprit, is_unexplained = sides.culprit(call), sides.is_unexplained(call)
    limit = max(ROUNDINGS * call.explained, call.error / 10) if is_unexplained else NO_DIGIT
    modules = sides.modules_until(culprit)[:_MOST_MODULES]

    def mends(replay: Replay) -> bool:
        changed = matched(record_step(replay, sides.state), sides.exact)
        return any(own.site == call.own.site and own.error_beside(exact) < limit for own, exact in changed)

    # The inputs may have lost their digits already: modules before the culprit are kept in float32, too. No code is
    # edited, which would move the lines that calls are matched by.
    change = smallest_change(examined, None, [modules[:end] for end in range(1, len(modules) + 1)], mends)
    if change is None and (culprit.call.operator.startswith("aten.") or not is_unexplained):
        return None
    facts = where(culprit.call) | {"error_pct": 100 * call.error, "explained_pct": 100 * call.explained}
    dtype = dtype_name(next(dtype for dtype in culprit.call.outputs if dtype.is_floating_point))
    proof = None if change is None else TriedChange(mends=True)
    return LargeError(**facts, dtype=dtype, change=change or Change(), proof=proof)


def _baseline_magnitudes(examined: ExaminedTraining) -> RunNumerics:
    replay = examined.baseline()
    precision, began_at = replay.built.precision, replay.trainer.step
    schedule = ObservationSchedule(None, _MAGNITUDE_STEPS)
    watch = NumericsWatch(replay.model, precision, schedule, is_compiled=examined.config.trainer.compile)
    replay.trainer.observers.append(WatchedUpdates(watch, precision))
    for step in range(1, _MAGNITUDE_STEPS + 1):
        if watch.numerics().steps and examined.seconds_left <= 0:
            break
        replay.read_ahead()
        with watch.look():
            replay.step()
        watch.read(began_at + step)
    found = watch.numerics()
    # Autocast lowers the same operators to every dtype; bfloat16 is fast everywhere.
    replay = examined.replay(replace(PRECISION_MODES["amp_bf16"], fp32_modules=examined.config.precision.fp32_modules))
    with note_lowered_layers(replay.model, torch.bfloat16) as outside:
        replay.step()
    found.outside = sorted(outside)
    return found


@contextmanager
def note_lowered_layers(model: nn.Module, dtype: torch.dtype) -> Iterator[set[str]]:
    """Note which modules and parameters, and whether the input, neither compute in `dtype` nor are cast to it in a
    forward pass under autocast. The set is filled at the end: until then all outputs stay in memory, so that no other
    tensor gets their addresses."""
    outside: set[str] = set()
    cast: set[int] = set()
    layers: dict[str, list[Tensor]] = defaultdict(list, {name: [weight] for name, weight in model.named_parameters()})

    def on_call(call: Call, args: Sequence[Any], *_: object) -> None:
        if call.phase == "forward" and call.is_cast and call.outputs[0] == dtype:
            cast.update(storages(args[0]))

    def note(layer: str, values: object) -> None:
        layers[layer].extend(tensor.detach() for tensor in tensors_in(values))

    with ExitStack() as hooks:
        hooks.callback(model.register_forward_pre_hook(lambda _, args: note(INPUT_LAYER, args)).remove)
        for name, module in model.named_modules():
            hook = module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
            hooks.callback(hook.remove)
        hooks.enter_context(observe(model, on_call, places=False))
        yield outside
    wide = ((name, of) for name, of in layers.items() if all(tensor.dtype != dtype for tensor in of))
    outside.update(name for name, tensors in wide if storages(tensors).isdisjoint(cast))
