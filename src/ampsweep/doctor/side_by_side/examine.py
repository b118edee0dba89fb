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
from ampsweep.doctor.diagnosis import (
    Change,
    DoctorFinding,
    TriedChange,
    kept_in_float32,
    module_name,
)
from ampsweep.doctor.patient import NotExaminedError, Patient
from ampsweep.doctor.replay import Replay
from ampsweep.doctor.side_by_side.comparison import NO_DIGIT, ROUNDINGS, ComparedCall, SideBySide
from ampsweep.doctor.side_by_side.recorded import RecordedCall, matched, record_step
from ampsweep.monitors.looks import Looks
from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.nested_tensors import tensors_in
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Call, observe
from ampsweep.record.numerics import INPUT_LAYER, RunNumerics
from ampsweep.text import number
from ampsweep.training.update_observers import WatchedUpdates

_STEPS_BEFORE: Final = 3
"""Steps in float32 before the one that is compared a second time: zero initializations hide what comes after them."""
_MOST_POINTS: Final = 200
_MOST_BEFORE: Final = 3
"""Modules before the one in question that are tried in float32 as well."""
_MAGNITUDE_STEPS: Final = (1, 2, 4)
"""The steps, from the first one replayed, that are looked into."""


@dataclass(frozen=True, kw_only=True)
class TriedInFloat32(TriedChange):
    """The call's error with modules in float32."""

    error: float | None = None
    """None: the step then does not make this call."""

    @property
    def sentence(self) -> str:
        if self.error is None:
            return "tried: the step then does not make this call, so its error was not found"
        if self.mends:
            return f"tried: its error is {_share(self.error)} then"
        return f"tried: it does not help alone, its error is still {_share(self.error)}"


class ErrorFinding(DoctorFinding):
    """A call whose results are wrong in the dtype: a base of classes."""

    complaint = "numerics"
    remedy = "compute it in float32"
    step: int
    dtype: str
    error: float
    """The relative error of its results."""
    explained_error: float
    float32_error: float
    """The error that float32's own rounding leaves in it."""
    is_in_both: bool
    """float32 makes this call, too."""

    @property
    def where(self) -> str:
        """The operator with its module and line."""
        module = f" of {module_name(self.modules[0])}" if self.modules else ""
        return f"{self.operator}{module}{self.at}"


class UnexplainedError(ErrorFinding):
    @property
    def sentence(self) -> str:
        told = f"{self.where} has an error of {_share(self.error)} in {self.dtype}"
        return f"{told}, where its inputs and the dtype explain {_share(self.explained_error)}"

    @property
    def evidence(self) -> list[str]:
        told = [
            f"the relative error of the forward pass's values at step {self.step}, against float32 with the same "
            "weights and batch; with every result rounded to the dtype as the training rounds it, float32 has no more "
            "than what is explained"
        ]
        if self.is_in_both:
            return told
        return [*told, "float32 does not make this call at all: the code takes another way in half precision"]


class NoDigitsLeft(ErrorFinding):
    template = "no digit of what {where} returns is right in {dtype}"

    @property
    def evidence(self) -> list[str]:
        if not math.isfinite(self.error):
            return [f"inf or NaN is in it at step {self.step}, where float32 has finite numbers"]
        return [
            f"its relative error at step {self.step} is {_share(self.error)}; float32's own rounding leaves "
            f"{_share(self.float32_error)} in it",
            "each operator is as exact as the dtype allows: the digits went when close numbers were subtracted, or "
            "when a large number that is only known to its last digit went through a function of small differences",
        ]


def _share(error: float) -> str:
    """A relative error in percent."""
    return f"{number(100 * error)} %" if math.isfinite(error) else str(error)


def examine_numerics(patient: Patient) -> list[ErrorFinding]:
    """Look into the magnitudes of a few steps in float32, and compare a step in the two dtypes: the first one, and one
    after a few steps if nothing is found in that.

    Raises:
        NotExaminedError: the training computes in float32, or its steps raise an error.
    """
    if (error := patient.baseline_steps.error) is not None:
        raise NotExaminedError(f"its steps end with an error in float32, too ({type(error).__name__})")
    patient.numerics = _baseline_magnitudes(patient)
    if patient.is_baseline:
        raise NotExaminedError("it computes in float32 itself, and has nothing to be compared with")
    if (error := patient.own_steps.error) is not None:
        raise NotExaminedError(f"its steps end with an error ({type(error).__name__})")
    for num_before in (0, _STEPS_BEFORE):
        if patient.seconds_left <= 0:
            break
        found = _first_wrong(patient, SideBySide(patient, num_before))
        if found is not None:
            return [found]
    return []


def _first_wrong(patient: Patient, sides: SideBySide) -> ErrorFinding | None:
    calls = sides.compared()
    patient.facts["numerics/error_growth"] = growth(calls)
    for one in calls:
        if sides.is_unexplained(one):
            return _finding(patient, sides, one, UnexplainedError)
        if one.has_lost_all_digits:
            return _finding(patient, sides, one, NoDigitsLeft)
    return None


def growth(calls: Sequence[ComparedCall]) -> list[dict[str, object]]:
    """The error through the forward pass: that of the last call of each module, one after the other."""
    known = [one for one in calls if 0 < one.explained < math.inf]
    ends = [one for one, after in pairwise(known) if after.own.call.module != one.own.call.module] + known[-1:]
    step = -(-len(ends) // _MOST_POINTS) or 1
    return [
        {
            "module": one.own.call.module or "",
            "operator": one.own.call.operator,
            "error": one.error,
            "explained": one.explained,
        }
        for one in ends[::step]
    ]


def _finding(patient: Patient, sides: SideBySide, call: ComparedCall, kind: type[ErrorFinding]) -> ErrorFinding:
    culprit = sides.culprit(call)
    own = culprit.call
    change, proof = _change(patient, sides, call, culprit)
    return kind(
        modules=[] if own.module is None else [own.module],
        operator=own.operator,
        place=own.place,
        step=sides.state.step + 1,
        dtype=dtype_name(next(dtype for dtype in own.outputs if dtype.is_floating_point)),
        error=call.error,
        explained_error=call.explained,
        float32_error=call.determined,
        is_in_both=culprit is call.own,
        change=change,
        proof=proof,
    )


def _change(
    patient: Patient, sides: SideBySide, call: ComparedCall, culprit: RecordedCall
) -> tuple[Change, TriedInFloat32 | None]:
    """The change that lets the culprit compute in float32, tried if an override can make it.

    There is none without autocast. Where it does not help, its inputs had lost the digits already: the modules before
    it are kept in float32 as well.
    """
    precision, module = patient.config.precision, culprit.call.module
    if not precision.autocast or not module:
        return Change(), None
    limit = NO_DIGIT if call.has_lost_all_digits else max(ROUNDINGS * call.explained, call.error / 10)
    kept, proof = [module], None
    for before in ([], *([one] for one in sides.modules_before(culprit)[:_MOST_BEFORE])):
        kept += before
        try:
            mended = record_step(patient.replay(fp32_modules=[*precision.fp32_modules, *kept]), sides.state)
        except Exception:  # noqa: BLE001  the model's own code may raise anything
            return Change(), None
        errors = {own.site: own.error_beside(exact) for own, exact in matched(mended, sides.exact)}
        after = errors.get(call.own.site)
        proof = TriedInFloat32(mends=after is not None and after < limit, error=after)
        if proof.mends or patient.seconds_left <= 0:
            break
    return Change(overrides=[kept_in_float32(precision, kept)]), proof


def _baseline_magnitudes(patient: Patient) -> RunNumerics:
    """Look into a few of the first steps in float32."""
    config = replace(patient.config, precision=PRECISION_MODES["fp32"])
    replay = Replay(config, patient.device, patient.data, patient.checkpoint)
    precision, began_at = replay.built.precision, replay.trainer.step
    looks = Looks(None, _MAGNITUDE_STEPS[-1])
    watch = NumericsWatch(replay.model, precision, looks, is_compiled=config.trainer.compile)
    replay.trainer.observers.append(WatchedUpdates(watch, precision))
    for step in range(1, _MAGNITUDE_STEPS[-1] + 1):
        if watch.numerics().steps and patient.seconds_left <= 0:
            break
        replay.read_ahead()
        with watch.look() if step in _MAGNITUDE_STEPS else nullcontext():
            replay.step()
        if step in _MAGNITUDE_STEPS:
            watch.read(began_at + step)
    found = watch.numerics()
    found.outside = _outside_autocast(patient)
    return found


def _outside_autocast(patient: Patient) -> list[str]:
    """The modules and parameters whose values no operator under autocast makes or takes in low precision.

    Autocast lowers the same operators to either dtype; bfloat16 is the faster one where there is no hardware for it.
    """
    replay = patient.replay(replace(PRECISION_MODES["amp_bf16"], fp32_modules=patient.config.precision.fp32_modules))
    with note_lowered_layers(replay.model, torch.bfloat16) as noted:
        replay.step()
    return sorted(noted.outside)


class LoweredLayers:
    """The result of `note_lowered_layers`, there once it is over."""

    outside: frozenset[str] = frozenset()
    """Names of modules that returned something, and of parameters, of which nothing was in the dtype or cast to it."""


@contextmanager
def note_lowered_layers(model: nn.Module, dtype: torch.dtype) -> Iterator[LoweredLayers]:
    """Note which layers compute in `dtype`, or are cast to it, in the forward pass inside, under autocast to it.

    What the model is called with is a layer of its own. All outputs stay in memory until the end, so that nothing else
    takes their place there.
    """
    noted = LoweredLayers()
    names = {module: name for name, module in model.named_modules()}
    returned: dict[str, list[Tensor]] = defaultdict(list)
    cast: set[int] = set()

    def on_call(call: Call, args: Sequence[Any], _: dict[str, Any], __: Any) -> None:
        if call.phase == "forward" and call.is_cast and call.outputs[0] == dtype:
            cast.add(_storage(args[0]))

    def on_input(module: nn.Module, args: Any) -> None:
        if module is model:
            returned[INPUT_LAYER].extend(tensors_in(args))

    def on_output(module: nn.Module, _: Any, output: Any) -> None:
        if module in names:
            returned[names[module]].extend(one.detach() for one in tensors_in(output))

    with ExitStack() as hooks:
        hooks.callback(register_module_forward_pre_hook(on_input).remove)
        hooks.callback(register_module_forward_hook(on_output).remove)
        hooks.enter_context(observe(model, on_call, places=False))
        yield noted
    outside = {
        name
        for name, tensors in returned.items()
        if all(one.dtype != dtype and _storage(one) not in cast for one in tensors)
    }
    outside |= {name for name, parameter in model.named_parameters() if _storage(parameter) not in cast}
    noted.outside = frozenset(outside)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
