"""Reading of data with random numbers that depend on a key alone, whichever generator an augmentation draws from."""

import _random
import random
import sys
from collections.abc import Callable
from ctypes import memmove, string_at
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch.utils.data import get_worker_info

from ampsweep.data.seeding import seed_of

Read = TypeVar("Read")

_HIDDEN: Final[Any] = random.random.__self__  # type: ignore[attr-defined]
"""The generator behind the functions of `random`."""
_ADDRESS: Final = id(_HIDDEN) + object.__basicsize__
_SIZE: Final = _random.Random.__basicsize__ - object.__basicsize__
_NUMPY_SIZE: Final = 4 * 625
"""A Mersenne Twister is 624 words and the position in them."""
_IS_READABLE: Final = sys.implementation.name == "cpython"
"""An object's `id` is its address, and behind its head lie its own fields."""


class SeededReading:
    """Reads with the generators of torch (the CPU's), `random` and `numpy.random` seeded by a key.

    Afterwards they are as they were: the model's own random numbers, as those of dropout, do not depend on who reads.
    A worker's generators are nobody else's, and stay as they are.

    To save and restore those of `random` and NumPy takes 0.1 ms, as long as a batch in memory takes to read. Until
    something read has drawn from them, they are only watched; the first batch that does is read a second time.
    """

    def __init__(self, *, can_repeat: bool = True) -> None:
        """`can_repeat`: what is read can be read a second time; else all generators are seeded from the beginning."""
        self._draws_from_others = not can_repeat

    def __call__(self, read: Callable[[], Read], *key: str | int) -> Read:
        """Call `read` with the generators seeded by `key`, and return its result."""
        seed = seed_of(*key)
        if get_worker_info() is not None:
            _seed_numpy(seed)
            random.seed(seed)
            return _with_torch(read, seed)
        of_torch = torch.default_generator.get_state()
        try:
            if not self._draws_from_others:
                watch = _Watch()
                result = _with_torch(read, seed)
                if watch.saw_no_draw():
                    return result
                watch.restore()
                self._draws_from_others = True
            return _with_all(read, seed)
        finally:
            torch.default_generator.set_state(of_torch)


class _Watch:
    """A watch over the generators of `random` and NumPy, from its construction on.

    Their bytes are compared where they lie: `random.getstate` takes 10 and `np.random.get_state` 40 microseconds.
    Where they cannot be, and where NumPy's generator is not its usual one, each call counts as a draw.
    """

    __slots__ = ("_address", "_normal", "_of_numpy", "_of_python", "_state")

    def __init__(self) -> None:
        self._of_numpy = get_bit_generator()
        self._of_python: Any
        self._state: Any
        self._address = 0
        """Where the state of NumPy's generator lies; 0 where the generators cannot be seen."""
        if not _IS_READABLE or type(self._of_numpy) is not np.random.MT19937:
            self._of_python, self._state = random.getstate(), np.random.get_state(legacy=False)
            return
        self._address = self._of_numpy.ctypes.state_address
        self._of_python, self._state = string_at(_ADDRESS, _SIZE), string_at(self._address, _NUMPY_SIZE)
        self._normal = _HIDDEN.gauss_next

    def saw_no_draw(self) -> bool:
        return (
            self._address != 0
            and string_at(_ADDRESS, _SIZE) == self._of_python
            and string_at(self._address, _NUMPY_SIZE) == self._state
            and get_bit_generator() is self._of_numpy
            and _HIDDEN.gauss_next == self._normal
        )

    def restore(self) -> None:
        """Put both back as they were; a normal number that NumPy's had left over for its next call is gone."""
        set_bit_generator(self._of_numpy)  # without what a draw has left over, too
        if self._address == 0:
            random.setstate(self._of_python)
            np.random.set_state(self._state)
            return
        memmove(_ADDRESS, self._of_python, _SIZE)
        memmove(self._address, self._state, _NUMPY_SIZE)
        _HIDDEN.gauss_next = self._normal


def _with_all(read: Callable[[], Read], seed: int) -> Read:
    of_python, of_numpy, state = random.getstate(), get_bit_generator(), np.random.get_state(legacy=False)
    set_bit_generator(np.random.MT19937(0))
    try:
        np.random.seed(seed)
        random.seed(seed)
        return _with_torch(read, seed)
    finally:
        set_bit_generator(of_numpy)
        np.random.set_state(state)
        random.setstate(of_python)


def _seed_numpy(seed: int) -> None:
    if type(get_bit_generator()) is not np.random.MT19937:  # the only kind that takes a seed
        set_bit_generator(np.random.MT19937(0))
    np.random.seed(seed)


def _with_torch(read: Callable[[], Read], seed: int) -> Read:
    # torch.manual_seed would reseed the device as well, whose generator is the model's.
    torch.default_generator.manual_seed(seed)
    return read()
