"""Gradients that are zero in an arm though they are not in float32, and weights that an update leaves unchanged."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import Replay

_MOST_STEPS = 17
"""Steps in which a scaler comes down from torch's first scale to one."""


def vanished_share(patient: Patient, changed: Variant) -> float:
    """Compute the share of gradient elements that are zero though they are not in float32, in the first applied step.

    Over all parameters, of the elements that float32 computes above zero. 0 if every step was skipped.
    """
    own = _first_gradients(changed.replay(patient))
    exact = _first_gradients(patient.baseline())
    num_lost = num_all = 0
    for name, gradient in exact.items():
        above = gradient != 0
        num_all += int(above.sum())
        if name in own:
            num_lost += int((above & (own[name] == 0)).sum())
    return num_lost / num_all if num_all else 0.0


def unchanged_share(patient: Patient, changed: Variant, num_steps: int) -> float:
    """Compute the share of weights that some steps leave as they were, of those whose gradient is not zero."""
    replay = changed.replay(patient)
    gradients = _noted(replay)
    state = {name: one.detach().clone() for name, one in replay.model.named_parameters()}
    for _ in range(num_steps):
        replay.step()
    num_kept = num_all = 0
    for name, parameter in replay.model.named_parameters():
        if name in gradients:
            above = gradients[name] != 0
            num_all += int(above.sum())
            num_kept += int((above & (parameter == state[name])).sum())
    return num_kept / num_all if num_all else 0.0


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
