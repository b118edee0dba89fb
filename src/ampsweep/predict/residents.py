"""What is made on a device and stays there."""

import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ampsweep.tracing.ledger import tensors_in


class Residents(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the tensors that operators return inside; whoever makes them keeps them, or does not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: list[weakref.ref[Tensor]] = []

    def __iter__(self) -> Iterator[Tensor]:
        """Those that are still there."""
        for made in self._made:
            tensor = made()
            if tensor is not None:
                yield tensor

    def add(self, tensor: Tensor) -> None:
        """Note a tensor."""
        self._made.append(weakref.ref(tensor))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            self.add(tensor)
        return result
