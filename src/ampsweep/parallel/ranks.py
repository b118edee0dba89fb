"""Communication of several ranks, common to all strategies."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ampsweep.parallel.base import Item, Parallel, RankFault, Stop
from ampsweep.parallel.group import Group

_AGREE_EVERY_S: Final = 0.25  # longest time between two agreements, and so until a stop request takes effect
_MOST_STEPS: Final = 100  # most steps between two agreements: the next steps may be slower than the measured ones


class RanksDisagreeError(RuntimeError):
    """Raised if numbers that must be equal on all ranks differ."""


class Ranks(Parallel):
    def __init__(self, group: Group, device: torch.device) -> None:
        self._group, place = group, group.place
        self.rank, self.world_size = place.rank, place.world_size
        self.local_rank, self.local_world_size = place.local_rank, place.local_world_size
        self.device = device
        self.agreed_s = 0.0  # the clock of rank 0 at the last agreement
        self.now_s = lambda: self.agreed_s

    def mean(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        total = torch.stack([value.to(dtype) for value in values.values()])
        dist.all_reduce(total)
        return dict(zip(values, (total / self.world_size).unbind(), strict=True))

    def total(self, values: Sequence[float]) -> Sequence[float]:
        total = torch.tensor([*values], dtype=torch.float64)
        dist.all_reduce(total)
        summed: list[float] = total.tolist()
        return summed

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        for buffer in model.buffers():
            dist.broadcast(torch.view_as_real(buffer) if buffer.is_complex() else buffer, 0)
        yield

    def anywhere(self, flags: Sequence[bool]) -> list[bool]:
        """The flags that are set on any rank."""
        merged = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(merged, dist.ReduceOp.MAX)
        return [bool(flag) for flag in merged.tolist()]

    def gather(self, item: Item) -> list[Item]:
        items: list[Item | None] = [None] * self.world_size
        dist.all_gather_object(items, item)
        return items  # type: ignore[return-value]

    def agree(self, stop: Stop) -> Stop:
        return _AgreedStop(self, stop)

    def cause(self, error: BaseException, fault: RankFault) -> RankFault:
        return self._group.cause(error, fault)

    def leave(self) -> None:
        self._group.close()

    def require_same(self, values: Mapping[str, float], step: int) -> None:
        if not values:
            return
        own = torch.tensor([*values.values()], dtype=torch.float64)
        ends = torch.stack([own, -own])
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if torch.equal(ends[0], -ends[1]):
            return
        of_ranks = self.gather([*values.values()])
        for key, *by_rank in zip(values, *of_ranks, strict=True):
            if len({*by_rank}) > 1:
                listed = ", ".join(f"{value:g} on rank {rank}" for rank, value in enumerate(by_rank[:8]))
                raise RanksDisagreeError(f"the ranks disagree at step {step}: {key} is {listed}")


class _AgreedStop:
    """A stop request that all ranks see after the same step; rank 0 sets the number of steps between agreements."""

    def __init__(self, ranks: Ranks, stop: Stop) -> None:
        self._ranks, self._stop = ranks, stop
        self._began_s = self._last_s = perf_counter()
        self._steps_left = self._interval = 1
        self._reason = ""

    @property
    def reason(self) -> str:
        self._steps_left -= 1
        if self._steps_left <= 0 and not self._reason:
            self._exchange()
        return self._reason

    def _exchange(self) -> None:
        now_s, own = perf_counter(), torch.zeros(3, dtype=torch.float64)
        own[0] = bool(self._stop.reason)
        if self._ranks.rank == 0:
            per_step_s = (now_s - self._last_s) / self._interval
            own[1] = now_s - self._began_s
            own[2] = min(_MOST_STEPS, max(1.0, _AGREE_EVERY_S // max(per_step_s, 1e-9)))
        self._last_s = now_s
        dist.all_reduce(own, dist.ReduceOp.MAX)
        is_requested, self._ranks.agreed_s, interval = own.tolist()
        self._steps_left = self._interval = int(interval)
        if is_requested:
            self._reason = next(reason for reason in self._ranks.gather(self._stop.reason) if reason)
