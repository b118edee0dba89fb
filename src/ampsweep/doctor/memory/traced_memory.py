"""Traced steps of a training: every allocation with its origin, as the training is or with some calls changed."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.config.schema import Config
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.memory.findings import Action
from ampsweep.doctor.replay import assembled
from ampsweep.doctor.tensor_origins import OF_EVERY_MODULE, TensorOrigin, TensorOrigins
from ampsweep.memory_categories import MemoryCategory
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.calls import Call, observe
from ampsweep.observe.functions import CallIdentity, FunctionMode
from ampsweep.observe.ledger import Allocation, Ledger, without_zeros
from ampsweep.observe.operators import TO_COPY
from ampsweep.observe.step import trace_step
from ampsweep.training.components.built import build_data
from ampsweep.training.trainer import Trainer

STATE: Final[tuple[MemoryCategory, ...]] = ("parameters", "gradients", "optimizer_state")

Changes = Mapping[CallIdentity, Action]


@dataclass(frozen=True, eq=False)
class Held:
    num_bytes: int
    category: MemoryCategory
    is_stale: bool  # an earlier step made it, and it is neither a parameter nor optimizer state
    origin: TensorOrigin | None = None  # None for an allocation from before the trace
    shape: tuple[int, ...] = ()

    @property
    def call(self) -> Call | None:
        return None if self.origin is None else self.origin.call


@dataclass(frozen=True)
class TracedMemory:
    """The memory of a training's third step."""

    peak_bytes: int
    peak: dict[MemoryCategory, int]
    end_of_forward: dict[MemoryCategory, int]
    held: tuple[Held, ...]  # everything that is alive at the peak
    growth_bytes: int  # bytes that a step leaves behind
    holders: Mapping[str, int]  # by attribute of a module or of the task: the bytes of its tensors after a step

    def pct(self, num_bytes: float) -> float:
        return 100 * num_bytes / self.peak_bytes

    def saved_pct(self, changed: "TracedMemory") -> float:
        return self.pct(self.peak_bytes - changed.peak_bytes)

    def peak_of(self, *categories: MemoryCategory) -> int:
        return sum(self.peak.get(category, 0) for category in categories)


def trace_memory(
    examined: ExaminedTraining,
    config: Config | None = None,
    *,
    changes: Changes | None = None,
    makers: bool = True,
    shares_casts: bool = False,
    between_steps: Callable[[Trainer], None] | None = None,
) -> TracedMemory:
    """Trace the second and the third step of a training (`config` if given), which may raise anything.

    Without `makers`, `held` has no origins. With `shares_casts` a tensor that is cast again to the dtype of a copy that
    is still alive gets that copy. `between_steps` is called with the trainer after each step.
    """
    config = config or examined.config
    is_same = config.data == examined.config.data
    data = examined.data if is_same else build_data(config, examined.device)
    built, trainer = assembled(config, examined.device, data, examined.checkpoint)
    functions = _ChangedFunctions(examined.device.type, changes or {}, getattr(torch, config.precision.dtype))

    def step() -> None:
        trainer.step += 1
        trainer.train_step()
        if between_steps is not None:
            between_steps(trainer)

    with ExitStack() as entered:
        entered.enter_context(built.precision.flags())
        if makers or changes:
            entered.enter_context(functions.watching())
        step()
        optimizers = trainer.optimizers.values()
        ledger = entered.enter_context(trace_step(trainer.model, *optimizers)).ledger
        known = _Makers(TensorOrigins(trainer.model, optimizers, functions), ledger)
        if makers or shares_casts:
            around = _SharedCasts() if shares_casts else None
            entered.enter_context(observe(trainer.model, known.note, around=around, places=makers))
        for _ in range(2):  # the second also holds what the first has left behind
            began, bytes_before = ledger.moment, ledger.live_bytes
            step()
        lives = ledger.lives()
        peak = lives.peak(since=began)
        alive = (allocation for allocation in ledger.allocations if allocation.alive_at(peak.moment))
        kept = {name: {*tensors_in(getattr(*holder))} for name, holder in holders(trainer).items()}
        return TracedMemory(
            peak_bytes=peak.num_bytes,
            peak=without_zeros(peak.categories),
            end_of_forward=without_zeros(lives.at(ledger.marked_moment)),
            held=tuple(known.held(allocation, began) for allocation in alive),
            growth_bytes=max(0, ledger.live_bytes - bytes_before),
            holders={name: sum(tensor.nbytes for tensor in tensors) for name, tensors in kept.items()},
        )


class _ChangedFunctions(FunctionMode):
    def __init__(self, device_type: str, changes: Changes, half: torch.dtype) -> None:
        super().__init__(device_type)
        self._changes, self._half = changes, half

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert self.running is not None
        action = self._changes.get(self.running.identity)
        if action == "skip" and isinstance(args[0], Tensor) and args[0].is_floating_point():
            return args[0]
        if action in ("without_autocast", "with_autocast"):
            with torch.autocast(self._device_type, self._half, enabled=action == "with_autocast"):
                return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if action == "in_half" and isinstance(result, Tensor) and result.is_floating_point():
            return result.to(self._half)
        return result


class _SharedCasts:
    def __init__(self) -> None:
        self._copies: dict[tuple[object, ...], weakref.ref[Tensor]] = {}

    def __call__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func is not TO_COPY or not args[0].is_floating_point():
            return func(*args, **kwargs)
        tensor: Tensor = args[0]
        where = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor._version
        key = (*where, *(str(value) for value in kwargs.values()))
        copy = self._copies[key]() if key in self._copies else None
        if copy is not None:
            return torch.ops.aten.alias.default(copy)
        made: Tensor = func(*args, **kwargs)
        self._copies[key] = weakref.ref(made)
        weakref.finalize(tensor.untyped_storage(), self._copies.pop, key, None)  # the address may be reused
        return made


class _Makers:
    def __init__(self, origins: TensorOrigins, ledger: Ledger) -> None:
        self._origins, self._ledger = origins, ledger
        self._made: dict[Allocation, tuple[TensorOrigin, tuple[int, ...]]] = {}

    def note(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        self._origins.note(call, args, kwargs, result)
        for tensor in tensors_in(result):
            allocation = self._ledger.find(tensor)
            if allocation is not None and allocation.born > 0 and allocation not in self._made:
                self._made[allocation] = self._origins.of(tensor), tuple(tensor.shape)

    def held(self, allocation: Allocation, began: int) -> Held:
        is_stale = 0 < allocation.born <= began and allocation.category not in STATE
        return Held(allocation.num_bytes, allocation.category, is_stale, *self._made.get(allocation, ()))


def holders(trainer: Trainer) -> dict[str, tuple[Any, str]]:
    """Attributes that hold tensors other than parameters and buffers: name (`task.history`), owner, attribute."""
    owners = [*trainer.model.named_modules(), ("task", trainer.task)]
    return {
        f"{prefix}.{name}" if prefix else name: (owner, name)
        for prefix, owner in owners
        for name, value in getattr(owner, "__dict__", {}).items()
        if name not in OF_EVERY_MODULE and any(True for _ in tensors_in(value))
    }
