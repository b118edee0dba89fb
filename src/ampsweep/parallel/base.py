"""The interface between a training and its ranks; in a training of one process every method is trivial."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ampsweep.config.schema import PrecisionConfig
from ampsweep.parallel.communication_time import Waits
from ampsweep.precision import Precision
from ampsweep.records.outcome import OutOfMemory, Status
from ampsweep.text import one_line

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class RankFault:
    """The error, in one sentence, with which a rank ends the training."""

    rank: int | None  # None if it is the only one
    status: Status
    error: str
    oom: OutOfMemory | None = None
    traceback: str | None = None
    is_guess: bool = False  # other ranks found the rank gone; whoever started it may know more

    @property
    def sentence(self) -> str:
        return self.error if self.rank is None else f"rank {self.rank}: {self.error}"


class OtherRankError(RuntimeError):
    """Raised on a rank that ends because of another rank's fault."""

    def __init__(self, fault: RankFault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault


class Stop(Protocol):
    @property
    def reason(self) -> str:
        """The reason to end the run, such as a signal's name; empty while there is none."""


class Parallel:
    """A training in one process, and the base of all strategies for several ranks."""

    rank = 0
    world_size = 1
    local_rank = 0  # on this machine
    local_world_size = 1
    reduced_bytes = 0  # bytes of gradients that this rank has handed to collectives so far
    waits: Waits | None = None  # time that a step waits for other ranks; None: one process, or unmeasurable

    now_s: Callable[[], float] = staticmethod(perf_counter)  # seconds, the same on all ranks

    def precision(self, config: PrecisionConfig, device: torch.device) -> Precision:
        """Make the precision; ValueError: the settings are impossible on the device."""
        return Precision(config, device)

    def distribute(self, model: nn.Module, precision: Precision, *, in_parts: bool = False) -> nn.Module:
        """Move the model, or this rank's shard, to the device in the parameters' dtype; ValueError: it does not fit.
        `in_parts`: a step calls the model's children, not the model."""
        return precision.convert(model)

    def micro_batches(self, num: int, trained: Sequence[nn.Parameter] | None) -> Iterable[object]:
        """Iterate over the micro-batches of a turn that trains some parameters (None: all); reduces gradients."""
        return range(num)

    def backward(self, precision: Precision) -> Callable[..., None]:
        """The backward pass of a turn's losses, like `Precision.backward`."""
        return precision.backward

    def evaluation(self, model: nn.Module) -> AbstractContextManager[None]:
        """Enclose an evaluation, in which all ranks have the buffers (running statistics) of rank 0."""
        return nullcontext()

    def clip_grad_norm_(self, parameters: Sequence[Tensor], max_norm: float) -> Tensor:
        """Clip the global 2-norm of the gradients; returns the norm before, 0-dim on the device."""
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    def grad_norm(self, gradients: list[Tensor], device: torch.device) -> Tensor:
        """Compute the global 2-norm of the gradients, 0-dim on the device, bit-equal to `get_total_norm`."""
        if device.type != "cpu" or not gradients:
            return nn.utils.get_total_norm(gradients)
        # `get_total_norm` sorts by device and dtype, on a CPU slower than the norms.
        norms: list[Tensor] = [torch.linalg.vector_norm(gradient) for gradient in gradients]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return total

    def mean(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Average 0-dim tensors on the device over all ranks, without a synchronization."""
        return values

    def total(self, values: Sequence[float]) -> Sequence[float]:
        return values

    def gather(self, item: Item) -> list[Item]:
        """Gather a small picklable item from each rank, in the order of ranks."""
        return [item]

    def agree(self, stop: Stop) -> Stop:
        """A stop request that all ranks see after the same step."""
        return stop

    def cause(self, error: BaseException, fault: RankFault) -> RankFault:
        """The first fault of all ranks: ``fault``, or another rank's that caused it."""
        return fault

    def leave(self) -> None:
        """Leave the other ranks after the training."""

    def require_same(self, values: Mapping[str, float], step: int) -> None:
        """Raise RanksDisagreeError if these numbers of a row differ between ranks."""


SINGLE = Parallel()


def together(ranks: Parallel, part: Callable[[], Item]) -> list[Item]:
    """Call `part` on each rank; return the results in the order of ranks. If a part fails, every rank raises: its own
    error, else the OSError of another rank, else OtherRankError."""
    try:
        value = part()
    except Exception as error:  # whatever it is, the other ranks are waiting
        parts = (error.errno, error.strerror, error.filename) if isinstance(error, OSError) else None
        ranks.gather((None, parts or one_line(error)))
        raise
    outcomes: list[tuple[Any, tuple[Any, ...] | str | None]] = ranks.gather((value, None))
    for rank, (_, raised_there) in enumerate(outcomes):
        if isinstance(raised_there, tuple):
            raise OSError(*raised_there)
        if raised_there is not None:
            raise OtherRankError(RankFault(rank=rank, status="failed", error=raised_there))
    return [value for value, _ in outcomes]
