"""What data puts on a device, where the device is fake and the data is not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from ampsweep.predict.residents import Residents

BEACON: Final = torch.device("meta")
"""The device that data is told to use: whatever arrives there becomes a fake tensor on the fake device."""


class Landing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Data runs inside with its real values on the host, and leaves its sizes on the fake device."""

    def __init__(self, mode: FakeTensorMode, residents: Residents) -> None:
        """`residents`: where it notes what has landed."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode, self._residents = mode, residents

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """On the host, wherever this is called from."""
        with unset_fake_temporarily(), self:
            yield

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
        self._residents.add(fake)
        return fake
