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
from ampsweep.observe.ledger import Allocation, without_zeros
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


def trace_memory(examined: ExaminedTraining, config: Config | None = None, *, makers: bool = True) -> TracedMemory:
    """Trace the second and the third step of a training (`config` if given), which may raise anything. Without
    `makers`, `held` has no origins."""
    config, data = config or examined.config, examined.data
    if config.data != examined.config.data:
        data = KeptBatches(build_data(config, examined.device), examined.data.deadline_s)
    built, trainer = assembled(config, examined.device, data, examined.checkpoint)
    functions, optimizers = FunctionMode(examined.device.type), trainer.optimizers.values()
    origins = TensorOrigins(trainer.model, optimizers, functions)
    made: dict[Allocation, tuple[TensorOrigin, tuple[int, ...]]] = {}

    def step() -> None:
        trainer.step += 1
        trainer.train_step()

    def note(call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        origins.note(call, args, kwargs, result)
        for tensor in tensors_in(result):
            allocation = ledger.find(tensor)
            if allocation is not None and allocation.born > 0:
                made.setdefault(allocation, (origins.of(tensor), tuple(tensor.shape)))

    def held(allocation: Allocation) -> Held:
        is_stale = 0 < allocation.born <= began and allocation.category not in STATE
        return Held(allocation.num_bytes, allocation.category, is_stale, *made.get(allocation, ()))

    with built.precision.flags(), ExitStack() as entered:
        step()
        ledger = entered.enter_context(trace_step(trainer.model, *optimizers)).ledger
        if makers:
            entered.enter_context(functions.watching())
            entered.enter_context(observe(trainer.model, note))
        for _ in range(2):  # the second also holds what the first has left behind
            began, bytes_before = ledger.moment, ledger.live_bytes
            step()
        peak = ledger.lives().peak(since=began)
        return TracedMemory(
            peak_bytes=peak.num_bytes,
            peak=without_zeros(peak.categories),
            held=tuple(held(allocation) for allocation in ledger.allocations if allocation.alive_at(peak.moment)),
            growth_bytes=max(0, ledger.live_bytes - bytes_before),
        )
