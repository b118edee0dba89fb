"""A training with some of its parts changed: the trials of the doctor, taken from the same state and batches."""

import glob
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import resolve_name

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import Replay, TakenSteps, taken_steps
from ampsweep.observe.calls import CallObserver, observe
from ampsweep.observe.functions import FunctionMode
from ampsweep.precision.fp32_modules import in_float32

_IN_PLACE: Final = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")
_CASTS: Final = ("to", "half", "bfloat16", "float", "double", "type", "type_as")
_FIXED: Final = frozenset((*_IN_PLACE, *_CASTS, "backward", "detach", "__get__", "__set__"))
"""Functions whose result has the dtype that they are asked for, or that compute nothing."""
_MOST_STEPS = 17
"""Steps in which a scaler comes down from torch's first scale to one."""


@dataclass(frozen=True)
class OwnCalls:
    """The calls that no module within makes: those of the model's own forward, or of the loss."""

    module: str | None
    """Empty for the model itself, None outside the model."""


Kept = str | OwnCalls
"""A thing that is kept in float32: a module by its name, with all within it, or calls of functions."""


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
        calls = frozenset(one for one in self.kept if isinstance(one, OwnCalls))
        if calls:
            replay.around_step = partial(_calls_in_float32, replay, calls)
        return replay

    def steps(self, patient: Patient, num_steps: int) -> TakenSteps:
        """Take steps; fewer if one raises an error, or if time is up."""
        return taken_steps(partial(self.replay, patient), num_steps, patient.deadline_s)


class _WidenedCalls(FunctionMode):
    """Computes some calls of a forward pass in float32."""

    def __init__(self, device_type: str, observer: CallObserver, calls: Collection[OwnCalls]) -> None:
        super().__init__(device_type)
        self._observer, self._calls = observer, calls

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert self.running is not None
        identity, module = self.running.identity, self._observer.module
        is_trainers = identity.line is None and module is None
        is_one = OwnCalls(module) in self._calls and not is_trainers and torch.is_grad_enabled()
        name = (resolve_name(func) or identity.function).rpartition(".")[2]
        if not is_one or not can_widen(name):
            return func(*args, **kwargs)
        with torch.autocast(self._device_type, enabled=False):
            return func(*in_float32(args), **in_float32(kwargs))


def can_widen(function: str) -> bool:
    """Tell whether a function's result may be float32: it neither changes a tensor in place nor makes a given dtype."""
    return function not in _FIXED and not (function.endswith("_") and not function.endswith("__"))


@contextmanager
def _calls_in_float32(replay: Replay, calls: Collection[OwnCalls]) -> Iterator[None]:
    """Compute some calls in float32: autocast is off for them, and their half-precision inputs are cast."""
    with (
        observe(replay.model, lambda *_: None, places=False) as observer,
        _WidenedCalls(replay.device.type, observer, calls).watching(),
    ):
        yield


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
