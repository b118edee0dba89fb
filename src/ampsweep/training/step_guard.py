"""The guard of a training without scaler: no optimizer steps after a loss or a gradient that is not finite."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ampsweep.monitors.magnitudes import all_finite
from ampsweep.training.forward_state import KeptState

TakeStep = Callable[[torch.optim.Optimizer], None]


@dataclass
class TakenTurn:
    """A turn of a step, with what is needed to take it again."""

    index: int
    """Its place in the step."""
    before: KeptState
    """The state before its first forward pass."""
    batch_numbers: list[int] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)
    """The batches of data that cannot be asked for them again."""
    losses: list[Tensor] = field(default_factory=list)
    """Losses that went backward so far, without their graph; none once the step is over."""


@dataclass
class BegunStep:
    """A step that is being taken or was, with what is needed to go back to its beginning."""

    number: int
    next_batch: int
    applied_steps: int
    before: KeptState
    turns: list[TakenTurn] = field(default_factory=list)
    losses: dict[str, Tensor | float] = field(default_factory=dict)
    """The losses of its turns by name, once it is over."""


class NonfiniteStepError(Exception):
    """Raised in place of an optimizer's step; `step` is the one whose loss or gradients are not finite."""

    def __init__(self, step: BegunStep, norm: Tensor | None = None) -> None:
        super().__init__(f"step {step.number} is not finite")
        self.step, self.norm = step, norm
        """`norm`: that of the gradients, if it is known not to be finite."""


class HostGuard:
    """A guard that reads losses and gradients on the host, before the optimizer's step.

    On the CPU that takes a microsecond, or where nobody clips gradients by their norm one pass over them. On an
    accelerator the host waits for the device.
    """

    def step(
        self, begun: BegunStep, take_step: TakeStep, optimizer: torch.optim.Optimizer, norm: Tensor | None
    ) -> None:
        """Take an optimizer's step after the latest turn.

        Args:
            norm: the norm of the optimizer's gradients, if they were clipped by it.

        Raises:
            NonfiniteStepError: the step was left out.
        """
        if not all(map(math.isfinite, begun.turns[-1].losses)):
            raise NonfiniteStepError(begun)
        if norm is not None and not math.isfinite(norm):
            raise NonfiniteStepError(begun, norm)
        if norm is None and not all(map(_is_finite, gradients_of(optimizer))):
            raise NonfiniteStepError(begun)
        take_step(optimizer)

    def poll(self, *, waits: bool = False) -> None:
        """Do nothing: each step has been judged."""


class DeviceGuard:
    """A guard that stays on the device: fused optimizers leave out their step themselves, by a flag.

    From the first bad step on no step changes a parameter. The host learns of it a few steps later, without waiting.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_bad = torch.zeros((), dtype=torch.bool, device=device)
        self._unread: list[tuple[BegunStep, Tensor, Any]] = []
        """Steps of which the host does not know yet, the flag that is on its way, and the event that it has come."""

    def step(self, begun: BegunStep, take_step: TakeStep, optimizer: Any, norm: Tensor | None) -> None:
        """Let the optimizer take its step, or leave it out; see `HostGuard.step`."""
        if norm is None:
            norms = torch._foreach_norm([*gradients_of(optimizer)], 2, dtype=torch.float32)
            norm = torch.linalg.vector_norm(torch.stack(norms))
        numbers = torch.stack([*(loss.float() for loss in begun.turns[-1].losses), norm.float()])
        self._is_bad = self._is_bad | ~numbers.isfinite().all()
        optimizer.grad_scale, optimizer.found_inf = None, self._is_bad.float()
        try:
            take_step(optimizer)
        finally:
            del optimizer.grad_scale, optimizer.found_inf
        self._unread.append((begun, *self._sent()))

    def poll(self, *, waits: bool = False) -> None:
        """See what has become of earlier steps, as far as the device has told, or `waits` for it.

        Raises:
            NonfiniteStepError: one of them was left out.
        """
        while self._unread and (waits or self._unread[0][2] is None or self._unread[0][2].query()):
            step, flag, event = self._unread.pop(0)
            if event is not None:
                event.synchronize()
            if flag:
                self._unread.clear()
                raise NonfiniteStepError(step)

    def _sent(self) -> tuple[Tensor, Any]:
        if self._device.type != "cuda":
            return self._is_bad.cpu(), None
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_(self._is_bad, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return flag, event


def gradients_of(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    """The gradients that an optimizer is about to use; of a sparse one its values."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if (gradient := parameter.grad) is not None:
                yield gradient if gradient.layout is torch.strided else gradient.coalesce().values()


def _is_finite(gradient: Tensor) -> bool:
    """Tell whether all elements are finite: the sum, which is quick, is not if one of them is not."""
    wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    return math.isfinite(gradient.sum(dtype=wide)) or all_finite(gradient)
