"""A training with some of its settings changed: the doctor's trials, which start from the same state and batches."""

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
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import Replay, TakenSteps, taken_steps
from ampsweep.observe.calls import CallObserver, observe
from ampsweep.observe.functions import FunctionMode
from ampsweep.precision.fp32_modules import in_float32

_IN_PLACE: Final = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__imatmul__", "__ipow__")
_CASTS: Final = ("to", "half", "bfloat16", "float", "double", "type", "type_as")
_FIXED: Final = frozenset((*_CASTS, "backward", "detach", "__get__", "__set__"))
_MOST_STEPS = 17  # steps in which a scaler goes down from torch's default scale to 1


@dataclass(frozen=True)
class OwnCalls:
    """The calls that a module's own forward makes, not its submodules, or those of the loss."""

    module: str | None  # empty for the model itself, None outside the model


Kept = str | OwnCalls  # what is kept in float32: a module by name, with its submodules, or calls of functions


@dataclass(frozen=True)
class Variant:
    kept: frozenset[Kept] = frozenset()  # kept in float32 under autocast
    precision: PrecisionConfig | None = None  # None: that of the training
    optimizer: Mapping[str, Any] = field(default_factory=dict)  # settings of the optimizer

    def replay(self, examined: ExaminedTraining) -> Replay:
        config = examined.config
        precision = self.precision or config.precision
        names = sorted(glob.escape(kept) for kept in self.kept if isinstance(kept, str))
        precision = replace(precision, fp32_modules=[*precision.fp32_modules, *names])
        changed = replace(config, precision=precision, optimizer={**config.optimizer, **self.optimizer})
        replay = Replay(changed, examined.device, examined.data, examined.checkpoint)
        calls = frozenset(kept for kept in self.kept if isinstance(kept, OwnCalls))
        if calls:
            replay.around_step = partial(_calls_in_float32, replay, calls)
        return replay

    def steps(self, examined: ExaminedTraining, num_steps: int) -> TakenSteps:
        return taken_steps(partial(self.replay, examined), num_steps, examined.deadline_s)


class _WidenedCalls(FunctionMode):
    """Computes some calls of a forward pass in float32: without autocast, and with half-precision inputs cast."""

    def __init__(self, device_type: str, observer: CallObserver, calls: Collection[OwnCalls]) -> None:
        super().__init__(device_type)
        self._observer, self._calls = observer, calls

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert self.running is not None
        identity, module = self.running.identity, self._observer.module
        is_trainers = identity.line is None and module is None
        is_wanted = OwnCalls(module) in self._calls and not is_trainers and torch.is_grad_enabled()
        name = (resolve_name(func) or identity.function).rpartition(".")[2]
        if not is_wanted or not can_widen(name):
            return func(*args, **kwargs)
        with torch.autocast(self._device_type, enabled=False):
            return func(*in_float32(args), **in_float32(kwargs))


def can_widen(function: str) -> bool:
    """Return True if a function's result may be float32: it has no fixed dtype and is not written in place."""
    return function not in _FIXED and not writes_in_place(function)


def writes_in_place(function: str) -> bool:
    return function in _IN_PLACE or (function.endswith("_") and not function.endswith("__"))


@contextmanager
def _calls_in_float32(replay: Replay, calls: Collection[OwnCalls]) -> Iterator[None]:
    with (
        observe(replay.model, lambda *_: None, places=False) as observer,
        _WidenedCalls(replay.device.type, observer, calls).watching(),
    ):
        yield


def vanished_share(examined: ExaminedTraining, changed: Variant) -> float:
    """The share of the nonzero float32 gradient elements that are zero with a change, in the first applied step."""
    own = _first_gradients(changed.replay(examined))
    exact = _first_gradients(examined.baseline())
    return _share((exact[name] != 0, own[name] == 0) for name in exact if name in own)


def unchanged_share(examined: ExaminedTraining, num_steps: int) -> float:
    """The share of the weights with a nonzero gradient that some steps leave unchanged."""
    replay = examined.replay()
    gradients, parameters = _recorded_gradients(replay), dict(replay.model.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for _ in range(num_steps):
        replay.step()
    return _share((gradients[name] != 0, parameters[name] == before[name]) for name in gradients)


def _share(masks: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The share of the elements in the first mask of each pair that are also in the second."""
    counts = [(int((first & second).sum()), int(first.sum())) for first, second in masks]
    num_all = sum(count for _, count in counts)
    return sum(count for count, _ in counts) / num_all if num_all else 0.0


def _first_gradients(replay: Replay) -> dict[str, Tensor]:
    """The gradients, by parameter, of the first step that is not skipped; none if there is no such step."""
    gradients = _recorded_gradients(replay)
    for _ in range(_MOST_STEPS):
        gradients.clear()
        if not replay.step().is_skipped:
            return gradients
    return {}


def _recorded_gradients(replay: Replay) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def note(name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            found[name] = parameter.grad.detach().clone()

    for name, parameter in replay.model.named_parameters():
        if parameter.requires_grad:
            on_gradient: Callable[[Tensor], None] = partial(note, name)
            parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
    return found
