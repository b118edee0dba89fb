"""Rows of the history whose values still lie on the device, until they are read together."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

_CAPACITY: Final = 32
_WIDTH: Final = 8
"""Most values of a row that may lie on the device, beside those of several turns."""


@dataclass(slots=True)
class _Unread:
    step: int
    numbers: dict[str, float]
    on_device: list[str]
    """Keys of this row's values in the buffer, in their order."""


class UnreadRows:
    """Up to 32 rows, whose values lie in one buffer on the device, so that keeping them does not change memory figures.

    Kept in float64 (float32 on mps, which has no other): exact for losses and for counts below 2**53.

    Args:
        num_more: number of values that a row may have beyond the usual ones.
    """

    def __init__(self, device: torch.device, num_more: int = 0) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._buffer = torch.zeros(_CAPACITY, _WIDTH + num_more, dtype=dtype, device=device)
        self._unread: list[_Unread] = []

    @cached_property
    def _places(self) -> list[tuple[Tensor, ...]]:
        """0-dim views of the buffer, made once, because making them for each row would cost more than filling them."""
        return [row.unbind() for row in self._buffer]

    def __len__(self) -> int:
        return len(self._unread)

    @property
    def full(self) -> bool:
        """True if no further row fits before the rows are taken."""
        return len(self._unread) == _CAPACITY

    def add(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Add a row with the current values, without waiting for them.

        Tensors must be 0-dim, on the device and without gradient, and at most 8, or as many more as there is room for.
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
        """Take out all rows, oldest first, as (step, values), read in one copy; waits for the device."""
        unread, self._unread = self._unread, []
        read = self._buffer[: len(unread)].tolist()
        return [
            (row.step, row.numbers | dict(zip(row.on_device, values, strict=False)))
            for row, values in zip(unread, read, strict=True)
        ]
