"""The processes of a training as one of them, a rank, sees them; of one process alone every method does nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ampsweep.config.schema import PrecisionConfig
from ampsweep.parallel.waits import Waits
from ampsweep.precision import Precision
from ampsweep.record.outcome import OutOfMemory, Status
from ampsweep.text import one_line

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class RankFault:
    """The reason why a rank cannot go on, and with it no other."""

    rank: int
    status: Status
    error: str
    """One sentence, without the rank."""
    oom: OutOfMemory | None = None
    traceback: str | None = None
    is_guess: bool = False
    """The rank could not tell by itself: others found it gone, and who started it may know more."""

    @property
    def sentence(self) -> str:
        return f"rank {self.rank}: {self.error}"


class OtherRankError(RuntimeError):
    """Raised on a rank that cannot go on because of another's fault."""

    def __init__(self, fault: RankFault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault


class Stop(Protocol):
    """The protocol of a request to end the run."""

    @property
    def reason(self) -> str:
        """The source of the request, such as a signal's name; empty while there is no request."""


class Parallel:
    """A training in one process, and what all ranks of one in several have in common."""

    rank = 0
    world_size = 1
    local_rank = 0
    """The rank among those of this machine."""
    local_world_size = 1
    reduced_bytes = 0
    """Bytes of gradients that this rank has handed to collectives so far."""
    waits: Waits | None = None
    """The time in which a step waits for other ranks; None where there are none, or it cannot be seen."""

    now_s: Callable[[], float] = staticmethod(perf_counter)
    """Seconds by a clock that is the same on all ranks."""

    @property
    def is_main(self) -> bool:
        """True on the one rank that writes the run's files and speaks to the user."""
        return self.rank == 0

    def precision(self, config: PrecisionConfig, device: torch.device) -> Precision:
        """Make the precision of these settings; a ``ValueError`` says why they are impossible on the device."""
        return Precision(config, device)

    def distribute(self, model: nn.Module, precision: Precision, *, in_parts: bool = False) -> nn.Module:
        """Move the model, or this rank's part of it, from the CPU to the device in the dtype of its parameters.

        Args:
            in_parts: a step calls the model's children, each by itself, and not the model.

        Raises:
            ValueError: the strategy does not fit the model.
        """
        return precision.convert(model)

    def micro_batches(self, num: int, trained: Sequence[nn.Parameter] | None) -> Iterable[object]:
        """Count the micro-batches of a turn that trains some parameters (None: all), and then reduce the gradients."""
        return range(num)

    def backward(self, precision: Precision) -> Callable[..., None]:
        """The function that runs the backward pass of a turn's losses, as `Precision.backward` does."""
        return precision.backward

    def evaluation(self, model: nn.Module) -> AbstractContextManager[None]:
        """Enclose an evaluation; all ranks get the buffers of the first, whose running statistics count."""
        return nullcontext()

    def clip_grad_norm_(self, parameters: Sequence[Tensor], max_norm: float) -> Tensor:
        """Clip the 2-norm of all gradients as one vector; returns the norm from before, 0-dim on the device."""
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    def grad_norm(self, gradients: list[Tensor], device: torch.device) -> Tensor:
        """Compute the 2-norm of all gradients as one vector, 0-dim on their device, bit-equal to `get_total_norm`."""
        if device.type != "cpu" or not gradients:
            return nn.utils.get_total_norm(gradients)
        # `get_total_norm` sorts by device and dtype, which on a CPU takes longer than the norms.
        norms: list[Tensor] = [torch.linalg.vector_norm(gradient) for gradient in gradients]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return total

    def mean(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """The means over all ranks of 0-dim tensors on the device, without waiting for it."""
        return values

    def total(self, values: Sequence[float]) -> Sequence[float]:
        """The sums over all ranks of numbers on the host."""
        return values

    def gather(self, item: Item) -> list[Item]:
        """The items of all ranks, in their order; they must be small and picklable."""
        return [item]

    def agree(self, stop: Stop) -> Stop:
        """A request to end the run that all ranks see after the same step."""
        return stop

    def cause(self, error: BaseException, fault: RankFault) -> RankFault:
        """The fault that ends the training: this rank's, or that of another before it."""
        return fault

    def leave(self) -> None:
        """Part from the other ranks: the training is over."""

    def require_same(self, values: Mapping[str, float], step: int) -> None:
        """Compare numbers of a row that must not differ between ranks.

        Raises:
            RanksDisagreeError: they differ.
        """


SINGLE = Parallel()
"""The training in one process."""


def together(ranks: Parallel, part: Callable[[], Item]) -> list[Item]:
    """Do this rank's part; return the results of all ranks in their order, or fail on all ranks together.

    Raises:
        OSError: the system's error, on all ranks, if a part met one.
        Exception: this rank's own error.
        OtherRankError: what another rank's part raised.
    """
    value: Item | None = None
    error: Exception | None = None
    try:
        value = part()
    except Exception as raised:  # noqa: BLE001  whatever it is, the other ranks are waiting
        error = raised
    outcomes: list[tuple[Any, tuple[Any, ...] | str | None]] = ranks.gather((value, _told(error)))
    if error is not None:
        raise error
    for rank, (_, told) in enumerate(outcomes):
        if isinstance(told, tuple):
            raise OSError(*told)
        if told is not None:
            raise OtherRankError(RankFault(rank=rank, status="failed", error=told))
    return [value for value, _ in outcomes]


def _told(error: Exception | None) -> tuple[Any, ...] | str | None:
    """The error as it is sent: the parts of a system's error, a line of any other."""
    if isinstance(error, OSError):
        return error.errno, error.strerror, error.filename
    return None if error is None else one_line(error)
