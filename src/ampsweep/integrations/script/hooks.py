"""torch's entry points that tell of a training: optimizer steps, gradient scaling, backward, evaluation."""

import functools
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ampsweep.text import one_line


def _nothing(*_: object, **__: object) -> None: ...


class Hooks:
    """Calls a `Watcher` from torch's hooks for optimizers and from methods wrapped for it, until it is closed.

    Whatever the watcher raises ends its hearing, and nothing else.
    """

    def __init__(self, listener: Any) -> None:
        self._listener, self.is_open = listener, True
        self._undo: list[Callable[[], object]] = []
        begins, ended = self.guarded(listener.step_begins), self.guarded(listener.step_ended)
        self._undo.append(register_optimizer_step_pre_hook(lambda own, *_: begins(own)).remove)
        self._undo.append(register_optimizer_step_post_hook(lambda own, *_: ended(own)).remove)
        self.wrap(GradScaler, "scale", after=lambda scaled, scaler, loss: listener.loss_scaled(loss, scaled))
        self.wrap(GradScaler, "step", before=lambda scaler, own, *_, **__: listener.scaler_steps(scaler, own))
        self.wrap(GradScaler, "update", after=lambda _, scaler, *__, **___: listener.scaler_updated(scaler))
        # `Tensor.backward` calls this function, too.
        self.wrap(
            torch.autograd,
            "backward",
            before=lambda tensors, grad_tensors=None, *_, **__: listener.backward_begins(tensors, grad_tensors),
        )
        self.wrap(nn.Module, "eval", before=listener.evaluation_begins)

    def wrap(
        self, owner: Any, name: str, *, before: Callable[..., None] = _nothing, after: Callable[..., None] = _nothing
    ) -> None:
        """Call `before` with the arguments of a function, and `after` with its result and them."""
        original, before, after = getattr(owner, name), self.guarded(before), self.guarded(after)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before(*args, **kwargs)
            result = original(*args, **kwargs)
            after(result, *args, **kwargs)
            return result

        def restore() -> None:
            if getattr(owner, name) is wrapped:  # else another has wrapped it in turn
                setattr(owner, name, original)

        setattr(owner, name, wrapped)
        self._undo.append(restore)

    def guarded(self, tell: Callable[..., None]) -> Callable[..., None]:
        """The function, silent once the hooks are closed; if it raises, they close."""

        def guarded(*args: Any, **kwargs: Any) -> None:
            if self.is_open:
                try:
                    tell(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - the training is worth more than its record
                    self.close()
                    self._listener.failed(one_line(error))

        return guarded

    def close(self) -> None:
        self.is_open = False
        for undo in self._undo:
            undo()
        self._undo.clear()


def is_plain(value: object) -> TypeGuard[Tensor]:
    """Return True for a tensor that reading does not make other ranks wait for, as a DTensor's would."""
    return type(value) in (Tensor, nn.Parameter)


def scalar_of(value: Tensor) -> Tensor:
    """A value of one element, 0-dim without graph, in a storage of its own (that of `mse_loss` is as large as the
    outputs)."""
    value = value.detach()
    if value.dim():
        value = value.reshape(())
    return value if value.untyped_storage().nbytes() == value.element_size() else value.clone()
