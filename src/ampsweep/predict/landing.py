"""What data puts on a device, where the device is fake and the data is not."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

BEACON: Final = torch.device("meta")
"""The device that data is told to use: whatever arrives there becomes a fake tensor on the fake device."""


class Landing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Data runs inside with its real values on the host, and leaves its sizes on the fake device."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode = mode
        self._landed: list[weakref.ref[Tensor]] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """On the host, wherever this is called from."""
        with unset_fake_temporarily(), self:
            yield

    def resident(self) -> Iterator[Tensor]:
        """What has landed and is still there."""
        for landed in self._landed:
            tensor = landed()
            if tensor is not None:
                yield tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and isinstance(args[0], FakeTensor) and [*kwargs] == ["device"]:
            return args[0]  # it is there already
        return self._land(func(*args, **kwargs))

    def _land(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._land(item) for item in value)
        if not isinstance(value, Tensor) or value.device != BEACON:
            return value
        with self._mode:
            fake = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")
        self._landed.append(weakref.ref(fake))
        return fake
