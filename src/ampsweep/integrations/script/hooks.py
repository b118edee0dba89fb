"""torch's entry points that tell of a training: optimizer steps, gradient scaling, backward, evaluation."""

import functools
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ampsweep.text import one_line


class Hooks:
    """Calls a `Watcher` from torch's hooks for optimizers and from methods wrapped for it, until it is closed.

    Whatever the watcher raises ends its hearing, and nothing else.
    """

    def __init__(self, listener: Any) -> None:
        self._listener, self.is_open = listener, True
        self._undo: list[Callable[[], object]] = []
        self._undo.append(register_optimizer_step_pre_hook(self._guarded(listener.step_begins)).remove)
        self._undo.append(register_optimizer_step_post_hook(self._guarded(listener.step_ended)).remove)
        self.wrap(GradScaler, "scale", lambda scaled, _, outputs: listener.loss_scaled(outputs, scaled), is_after=True)
        self.wrap(GradScaler, "step", lambda scaler, optimizer, *_, **__: listener.scaler_steps(scaler, optimizer))
        self.wrap(GradScaler, "update", lambda _, scaler, *__, **___: listener.scaler_updated(scaler), is_after=True)
        # `Tensor.backward` calls this function, too.
        self.wrap(
            torch.autograd,
            "backward",
            lambda tensors, grad_tensors=None, *_, **__: listener.backward_begins(tensors, grad_tensors),
        )
        self.wrap(nn.Module, "eval", listener.evaluation_begins)

    def wrap(self, owner: Any, name: str, tell: Callable[..., None], *, is_after: bool = False) -> None:
        """Call `tell` before a function with its arguments, or after it with its result and them."""
        original = getattr(owner, name)

        def before(*args: Any, **kwargs: Any) -> Any:
            if self.is_open:
                try:
                    tell(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - the training is worth more than its record
                    self._fail(error)
            return original(*args, **kwargs)

        def after(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.is_open:
                try:
                    tell(result, *args, **kwargs)
                except Exception as error:  # noqa: BLE001 - as above
                    self._fail(error)
            return result

        wrapped = functools.wraps(original)(after if is_after else before)

        def restore() -> None:
            if getattr(owner, name) is wrapped:  # else another has wrapped it in turn
                setattr(owner, name, original)

        setattr(owner, name, wrapped)
        self._undo.append(restore)

    def _guarded(self, tell: Callable[[Optimizer], None]) -> Callable[..., None]:
        def guarded(optimizer: Optimizer, *_: object) -> None:
            if self.is_open:
                try:
                    tell(optimizer)
                except Exception as error:  # noqa: BLE001 - as above
                    self._fail(error)

        return guarded

    def _fail(self, error: Exception) -> None:
        self.close()
        self._listener.failed(one_line(error))

    def close(self) -> None:
        self.is_open = False
        for undo in self._undo:
            undo()
        self._undo.clear()


def is_plain(value: object) -> TypeGuard[Tensor]:
    """Return True for a tensor that reading does not make other ranks wait for, as a DTensor's would."""
    return type(value) in (Tensor, nn.Parameter)


def scalar_of(value: Tensor) -> float | Tensor:
    """The value of one element: from host memory a number, from elsewhere a 0-dim tensor without graph, in a storage of
    its own (that of `mse_loss` is as large as the outputs)."""
    if value.is_cpu:
        return float(value.item())
    value = value.detach()
    if value.dim():
        value = value.reshape(())
    return value if value.untyped_storage().nbytes() == value.element_size() else value.clone()
