"""A training with some of its parts changed: the trials of the doctor, taken from the same state and batches."""

import glob
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from torch import Tensor

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.functions import CalledFunction, calls_in_float32
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import Replay, TakenSteps, taken_steps
from ampsweep.doctor.speed.step_times import Ratio, times_in_turn
from ampsweep.monitors.step_clock import Moments
from ampsweep.observe.step import trace_step

Kept = str | CalledFunction
"""A thing that is kept in float32: a module by its name, with all within it, or calls of functions."""

_TIMED_S: Final = 0.5
_MOST_STEPS = 17
"""Steps in which a scaler comes down from torch's first scale to one."""


@dataclass(frozen=True)
class Variant:
    """The changes of a trial."""

    kept: frozenset[Kept] = frozenset()
    """Kept in float32 under autocast."""
    precision: PrecisionConfig | None = None
    """None: that of the training."""
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the optimizer."""

    def replay(self, patient: Patient) -> Replay:
        """Build the training with these changes.

        Raises:
            UserError: a part refuses its settings.
        """
        config = patient.config
        precision = self.precision or config.precision
        names = sorted(glob.escape(one) for one in self.kept if isinstance(one, str))
        precision = replace(precision, fp32_modules=[*precision.fp32_modules, *names])
        changed = replace(config, precision=precision, optimizer={**config.optimizer, **self.optimizer})
        replay = Replay(changed, patient.device, patient.data, patient.checkpoint)
        calls = frozenset(one for one in self.kept if isinstance(one, CalledFunction))
        replay.around_step = partial(calls_in_float32, replay, calls)
        return replay

    def steps(self, patient: Patient, num_steps: int) -> TakenSteps:
        """Take steps; fewer if one raises an error, or if time is up."""
        return taken_steps(partial(self.replay, patient), num_steps, patient.deadline_s)


def price(patient: Patient, changed: Variant) -> tuple[float | None, float]:
    """The quotients of times and peaks with a change and without it, of steps taken in turn.

    The time is the median over pairs of steps; the peak is that of the tensors' bytes in a traced step. A change of
    lines of code has no time: what stands in for it here is slower than the changed lines are.
    """
    replays = [Variant().replay(patient), changed.replay(patient)]
    peaks = []
    for one in replays:
        one.step()  # after it there is optimizer state
        with trace_step(one.model, *one.built.optimizers.values()) as trace:
            one.step()
        peaks.append(trace.result.peak_bytes)
    memory_ratio = peaks[1] / peaks[0]
    if any(isinstance(one, CalledFunction) for one in changed.kept):
        return None, memory_ratio
    own, other = times_in_turn(
        [replays[0].step, replays[1].step],
        Moments(patient.device),
        seconds=max(min(_TIMED_S, patient.seconds_left), 0.0),
    )
    return Ratio.of(other, own).median, memory_ratio


def vanished_share(patient: Patient, changed: Variant) -> float:
    """The share of gradient elements that are zero though they are not in float32, in the first applied step.

    Over all parameters, of the elements that float32 computes above zero. 0 if every step was skipped.
    """
    own = _first_gradients(changed.replay(patient))
    exact = _first_gradients(patient.baseline())
    return _share((exact[name] != 0, own[name] == 0) for name in exact if name in own)


def unchanged_share(patient: Patient, num_steps: int) -> float:
    """The share of weights that some steps leave as they were, of those whose gradient is not zero."""
    replay = patient.replay()
    gradients, parameters = _noted(replay), dict(replay.model.named_parameters())
    before = {name: one.detach().clone() for name, one in parameters.items()}
    for _ in range(num_steps):
        replay.step()
    return _share((gradients[name] != 0, parameters[name] == before[name]) for name in gradients)


def _share(masks: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The share of the elements in the first mask of each pair that are in the second one, too."""
    counts = [(int((one & other).sum()), int(one.sum())) for one, other in masks]
    num_all = sum(count for _, count in counts)
    return sum(count for count, _ in counts) / num_all if num_all else 0.0


def _first_gradients(replay: Replay) -> dict[str, Tensor]:
    """Take steps up to the first that is not skipped; return its gradients by parameter."""
    gradients = _noted(replay)
    for _ in range(_MOST_STEPS):
        gradients.clear()
        if not replay.step().is_skipped:
            return gradients
    return {}


def _noted(replay: Replay) -> dict[str, Tensor]:
    """Have the gradients of each step noted in the returned mapping; of those of a parameter the last."""
    found: dict[str, Tensor] = {}

    def note(name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            found[name] = parameter.grad.detach().clone()

    for name, parameter in replay.model.named_parameters():
        if parameter.requires_grad:
            on_gradient: Callable[[Tensor], None] = partial(note, name)
            parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
    return found
