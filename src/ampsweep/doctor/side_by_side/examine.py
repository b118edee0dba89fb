"""The complaint `numerics`: the first operators whose error is larger than their inputs and their dtype explain."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.patient import NotExaminedError, Patient
from ampsweep.doctor.replay import Replay, ReplayState
from ampsweep.doctor.side_by_side.explained import ExplainedErrors
from ampsweep.doctor.side_by_side.magnitudes import baseline_magnitudes
from ampsweep.doctor.side_by_side.recorded import Key, RecordedCall, matched, record_step, relative_error
from ampsweep.record.diagnosis import Change, Finding, written
from ampsweep.tracing.calls import Call, observe
from ampsweep.tracing.ledger import tensors_in

_ROUNDINGS: Final = 4.0
"""Factor between the largest error that perturbed steps show and one that is unexplained: a kernel may round what it
computes on its way, each time as much as its result."""
_COARSE: Final = 2.0**-3
"""The least relative error of an operator of torch's own that counts: not three binary digits of its result are right.
torch's kernels are compared with float32 by its own tests; some (layer norm's backward on a CPU, for one) leave errors
of 5 % in bfloat16, which no training notices."""
_NO_DIGIT: Final = 0.5
"""The relative error of a result of which no binary digit is right."""
_DETERMINED: Final = 0.01
"""The relative error that float32's own roundoff may leave in a result for it to be well determined there."""
_MOST_FINDINGS: Final = 3
_STEPS_BEFORE: Final = 3
"""Steps in float32 before the one that is compared a second time: zero initializations hide what comes after them."""
_MOST_POINTS: Final = 200
_MOST_BEFORE: Final = 3
"""Modules before the one in question that are tried in float32 as well."""


@dataclass(frozen=True, kw_only=True)
class ComparedCall:
    """A call of the step in its own precision beside the same call in float32."""

    own: RecordedCall
    baseline: RecordedCall
    error: float
    """Relative error of the results, as their 2-norm has it."""
    explained: float
    """The largest that the errors of the inputs and the dtype explain."""
    determined: float = math.inf
    """The error that float32's own roundoff leaves; not looked for where no call is wrong."""

    def is_unexplained(self, *, of_torch: bool) -> bool:
        """Tell whether the error has another cause than the inputs' errors and the dtype.

        Args:
            of_torch: the operator is torch's own, which adds up long axes in the dtype here and there.
        """
        roundoff = max(torch.finfo(dtype).eps / 2 for dtype in self.own.call.outputs if dtype.is_floating_point)
        least = _COARSE if of_torch else roundoff
        return self.error > max(_ROUNDINGS * self.explained, least)

    @property
    def is_wrong(self) -> bool:
        """Tell whether a value of the forward pass has no right digit."""
        return self.own.call.phase == "forward" and self.error >= _NO_DIGIT

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
        precision = patient.config.precision
        scaled = replace(
            PRECISION_MODES["fp32"],
            grad_scaler=precision.grad_scaler,
            init_scale=precision.init_scale,
            growth_interval=precision.growth_interval,
        )
        self._baseline, self._own = patient.replay(scaled), patient.replay()
        for _ in range(num_before):
            self._baseline.step()
        self.state = self._baseline.state()
        self.exact = record_step(self._baseline)
        self._known: dict[int, list[Tensor]] = {}
        self.own = recorded_from(self._own, self.state)
        self.pairs = [*matched(self.own, self.exact)]

    def compared(self) -> list[ComparedCall]:
        """Compare all calls that the two steps have in common, in their order."""
        partners = {baseline.call.index: own for own, baseline in self.pairs}
        errors = ExplainedErrors(self._baseline, self.state, self.exact, partners, self._known)
        found = [
            ComparedCall(
                own=own,
                baseline=baseline,
                error=relative_error(own.results, baseline.results),
                explained=errors.largest.get(baseline.key, 0.0),
            )
            for own, baseline in self.pairs
        ]
        if not any(one.is_wrong for one in found):  # as in most trainings
            return found
        determined = errors.in_float32()
        return [replace(one, determined=determined.get(one.baseline.key, 0.0)) for one in found]

    def culprit(self, call: ComparedCall) -> RecordedCall:
        """The call that made an error: this one or, right before it, the last one that float32 does not make.

        Such calls, of a fast path for half precision for example, have nothing to be compared with.
        """
        both = {own.call.index for own, _ in self.pairs}
        number = self.own.index(call.own)
        before = self.own[number - 1] if number else call.own
        is_alone = before.call.index not in both and before.call.phase == call.own.call.phase
        return before if is_alone else call.own

    def is_unexplained(self, call: ComparedCall) -> bool:
        """Tell whether the error of a call, or of the one right before it, has another cause than inputs and dtype."""
        if not call.is_unexplained(of_torch=False):
            return False
        culprit = self.culprit(call)
        is_of_torch = culprit is call.own and culprit.call.operator.startswith("aten.")
        return call.is_unexplained(of_torch=is_of_torch)

    def modules_before(self, culprit: RecordedCall) -> list[str]:
        """The modules that computed in half precision before a call of the forward pass, the nearest first."""
        names = [
            one.call.module
            for one in self.own
            if one.call.index < culprit.call.index and one.call.phase == "forward" and one.call.module
            if any(dtype.itemsize < 4 and dtype.is_floating_point for dtype in one.call.outputs)
        ]
        return [name for name in dict.fromkeys(reversed(names)) if name != culprit.call.module]

    def take_as_known(self, call: ComparedCall) -> None:
        """Let all comparisons from now on explain what follows from the error of this call."""
        self._own.restore(self.state)
        results: list[Tensor] = []

        def keep(one: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
            if one.index == call.own.call.index:
                results.extend(tensor.detach().clone() for tensor in tensors_in(result))

        self._own.read_ahead()
        with observe(self._own.model, keep, places=False):
            self._own.step()
        self._known[call.baseline.call.index] = results


def recorded_from(replay: Replay, state: ReplayState) -> list[RecordedCall]:
    """Record the step that a replay takes from a state."""
    replay.restore(state)
    return record_step(replay)


def examine_numerics(patient: Patient) -> list[Finding]:
    """Look into the magnitudes of a few steps in float32, and compare a step in the two dtypes: the first one, and one
    after a few steps if nothing is found in that.

    Raises:
        NotExaminedError: the training computes in float32, or its steps raise an error.
    """
    if (error := patient.baseline_steps.error) is not None:
        raise NotExaminedError(f"its steps end with an error in float32, too ({type(error).__name__})")
    patient.numerics = baseline_magnitudes(patient)
    if patient.is_baseline:
        raise NotExaminedError("it computes in float32 itself, and has nothing to be compared with")
    if (error := patient.own_steps.error) is not None:
        raise NotExaminedError(f"its steps end with an error ({type(error).__name__})")
    findings: list[Finding] = []
    for num_before in (0, _STEPS_BEFORE):
        if findings or patient.seconds_left <= 0:
            break
        findings = [*_findings(patient, SideBySide(patient, num_before))]
    return findings


def _findings(patient: Patient, sides: SideBySide) -> Iterator[Finding]:
    for number in range(_MOST_FINDINGS):
        calls = sides.compared()
        if number == 0:
            patient.facts["numerics/error_growth"] = growth(calls)
        unexplained = next((one for one in calls if sides.is_unexplained(one)), None)
        lost = next((one for one in calls if one.has_lost_all_digits), None)
        if number == 0 and lost is not None and (unexplained is None or _is_before(lost, unexplained)):
            yield _finding(patient, sides, lost, "no_digits_left")
        if unexplained is None or patient.seconds_left <= 0:
            return
        yield _finding(patient, sides, unexplained, "unexplained_error")
        if sides.culprit(unexplained) is not unexplained.own:
            return  # nothing tells which of the errors after it are its own
        sides.take_as_known(unexplained)


def growth(calls: Sequence[ComparedCall]) -> list[dict[str, object]]:
    """The error through the forward pass: that of the last call of each module, one after the other."""
    forward = [one for one in calls if one.own.call.phase == "forward" and one.explained > 0]
    ends = [one for one, after in pairwise(forward) if after.own.call.module != one.own.call.module] + forward[-1:]
    step = -(-len(ends) // _MOST_POINTS) or 1
    return [
        {
            "module": one.own.call.module or "",
            "operator": one.own.call.operator,
            "error": written(one.error),
            "explained": written(one.explained),
        }
        for one in ends[::step]
    ]


def _is_before(one: ComparedCall, other: ComparedCall) -> bool:
    return one.own.call.index < other.own.call.index


def _finding(patient: Patient, sides: SideBySide, call: ComparedCall, kind: str) -> Finding:
    culprit = sides.culprit(call)
    own = culprit.call
    change, proof = _change(patient, sides, call, culprit)
    return Finding(
        complaint="numerics",
        kind=kind,
        modules=[] if own.module is None else [own.module],
        operator=own.operator,
        place=own.place,
        evidence={
            "phase": own.phase,
            "step": sides.state.step + 1,
            "dtype": _name(next(dtype for dtype in own.outputs if dtype.is_floating_point)),
            "error": written(call.error),
            "explained_error": written(call.explained),
            "float32_error": written(call.determined),
            "is_in_both": culprit is call.own,
        },
        change=change,
        proof=proof,
    )


def _change(
    patient: Patient, sides: SideBySide, call: ComparedCall, culprit: RecordedCall
) -> tuple[Change, dict[str, object]]:
    """The change that lets the culprit compute in float32, tried if an override can make it.

    Where it does not help, its inputs had lost the digits already: the modules before it are kept in float32 as well.
    """
    precision, module = patient.config.precision, culprit.call.module
    if not precision.autocast or not module:
        device = patient.device.type
        return Change(code=f'with torch.autocast("{device}", enabled=False): ...  # on .float() tensors'), {}
    limit = _NO_DIGIT if call.has_lost_all_digits else max(_ROUNDINGS * call.explained, call.error / 10)
    kept = [*precision.fp32_modules, module]
    proof: dict[str, object] = {}
    for before in (None, *sides.modules_before(culprit)[:_MOST_BEFORE]):
        kept = kept if before is None else [*kept, before]
        try:
            mended = recorded_from(patient.replay(fp32_modules=kept), sides.state)
        except Exception as error:  # noqa: BLE001  the model's own code may raise anything
            return Change(overrides=[override(kept)]), {"mends": False, "raised": type(error).__name__}
        after = error_at(call.own.key, mended, sides.exact)
        proof = {"mends": after is not None and after < limit, "error": None if after is None else written(after)}
        if proof["mends"] or patient.seconds_left <= 0:
            break
    return Change(overrides=[override(kept)]), proof


def error_at(key: Key, own: Sequence[RecordedCall], exact: Sequence[RecordedCall]) -> float | None:
    """The relative error of one call; None where the two steps do not have it in common."""
    pair = next((pair for pair in matched(own, exact) if pair[0].key == key), None)
    return None if pair is None else relative_error(pair[0].results, pair[1].results)


def override(modules: Sequence[str]) -> str:
    """The override that keeps modules in float32."""
    return f"precision.fp32_modules=[{','.join(modules)}]"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
