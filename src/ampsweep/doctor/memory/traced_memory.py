"""Traced steps of a training: every allocation with its origin, as the training is or with some calls changed."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from ampsweep.config.schema import Config
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import KeptBatches, assembled
from ampsweep.doctor.tensor_origins import TensorOrigin, TensorOrigins
from ampsweep.memory_categories import MemoryCategory
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.calls import Call, observe
from ampsweep.observe.functions import FunctionMode
from ampsweep.observe.ledger import Allocation, Ledger, without_zeros
from ampsweep.observe.step import trace_step
from ampsweep.training.components.built import build_data

STATE: Final[tuple[MemoryCategory, ...]] = ("parameters", "gradients", "optimizer_state")


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
    held: tuple[Held, ...]  # everything that is alive at the peak
    growth_bytes: int  # bytes that a step leaves behind

    def pct(self, num_bytes: float) -> float:
        return 100 * num_bytes / self.peak_bytes

    def saved_pct(self, changed: "TracedMemory") -> float:
        return self.pct(self.peak_bytes - changed.peak_bytes)

    def peak_of(self, *categories: MemoryCategory) -> int:
        return sum(self.peak.get(category, 0) for category in categories)


def trace_memory(examined: ExaminedTraining, config: Config | None = None, *, makers: bool = True) -> TracedMemory:
    """Trace the second and the third step of a training (`config` if given), which may raise anything. Without
    `makers`, `held` has no origins."""
    config = config or examined.config
    is_same = config.data == examined.config.data
    data = examined.data if is_same else KeptBatches(build_data(config, examined.device), examined.data.deadline_s)
    built, trainer = assembled(config, examined.device, data, examined.checkpoint)
    functions = FunctionMode(examined.device.type)

    def step() -> None:
        trainer.step += 1
        trainer.train_step()

    with ExitStack() as entered:
        entered.enter_context(built.precision.flags())
        if makers:
            entered.enter_context(functions.watching())
        step()
        optimizers = trainer.optimizers.values()
        ledger = entered.enter_context(trace_step(trainer.model, *optimizers)).ledger
        known = _Makers(TensorOrigins(trainer.model, optimizers, functions), ledger)
        if makers:
            entered.enter_context(observe(trainer.model, known.note))
        for _ in range(2):  # the second also holds what the first has left behind
            began, bytes_before = ledger.moment, ledger.live_bytes
            step()
        peak = ledger.lives().peak(since=began)
        alive = (allocation for allocation in ledger.allocations if allocation.alive_at(peak.moment))
        return TracedMemory(
            peak_bytes=peak.num_bytes,
            peak=without_zeros(peak.categories),
            held=tuple(known.held(allocation, began) for allocation in alive),
            growth_bytes=max(0, ledger.live_bytes - bytes_before),
        )


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
