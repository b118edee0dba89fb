"""Rows of the history whose values still lie on the device, until they are read together."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

_CAPACITY: Final = 32
_WIDTH: Final = 8
"""Values of a row on the device, at most."""


@dataclass(slots=True)
class _Unread:
    step: int
    numbers: dict[str, float]
    on_device: list[str]
    """Keys of the values in this row's place of the buffer, in their order."""


class UnreadRows:
    """Up to 32 rows; their values lie in a buffer on the device, so that holding them takes no memory a run could see.

    Kept in float64 (float32 on mps, which has no other): exact for losses and for counts below 2**53.
    """

    def __init__(self, device: torch.device) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._buffer = torch.zeros(_CAPACITY, _WIDTH, dtype=dtype, device=device)
        self._unread: list[_Unread] = []

    @cached_property
    def _places(self) -> list[tuple[Tensor, ...]]:
        """Views of the buffer, 0-dim each: to take them anew would cost every row more than to fill them."""
        return [row.unbind() for row in self._buffer]

    def __len__(self) -> int:
        return len(self._unread)

    @property
    def full(self) -> bool:
        """No further row fits before these are taken."""
        return len(self._unread) == _CAPACITY

    def add(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Keep the values (tensors: 0-dim on the device, without gradient, at most 8) as they are now, without waiting
        for them.
        """
        numbers: dict[str, float] = {}
        on_device: list[str] = []
        places = iter(self._places[len(self._unread)])
        for key, value in values.items():
            if isinstance(value, Tensor):
                next(places).copy_(value)
                on_device.append(key)
            else:
                numbers[key] = value
        self._unread.append(_Unread(step, numbers, on_device))

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """The rows kept so far, oldest first: their step and their values, read in one copy; waits for the device."""
        unread, self._unread = self._unread, []
        read = self._buffer[: len(unread)].tolist()
        return [
            (row.step, row.numbers | dict(zip(row.on_device, values, strict=False)))
            for row, values in zip(unread, read, strict=True)
        ]
