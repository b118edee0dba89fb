"""How much the operators of a computation return in all."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ampsweep.tracing.ledger import Ledger, tensors_in


class OutputBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operators make on one device, however soon they are freed; views make none."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = Ledger(device, keeps_history=False)
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(t is not Tensor for t in types):
            return NotImplemented  # a tensor subclass takes over: its operators on plain tensors are seen instead
        for tensor in tensors_in((args, kwargs)):
            if self._ledger.find(tensor) is None:
                self._ledger.hold(tensor, "other")
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if self._ledger.create(tensor, "other"):
                self.num_bytes += tensor.untyped_storage().nbytes()
        return result
