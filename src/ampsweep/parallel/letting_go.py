"""The end of a collective on the host: nobody holds its tensors any more but who held them before."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

_LONGEST_S: Final = 0.1
"""The longest time to wait: by then it is no thread that was about to."""


@contextmanager
def until_let_go(*tensors: Tensor) -> Iterator[None]:
    """Leave, after a collective of tensors on the host, when nobody holds them who did not before.

    The thread of gloo's that has run it lets go of them a moment after its caller is told that it is done; on a busy
    machine that is milliseconds, in which memory is held that the caller has freed.
    """
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    before = [_num_holders(storage) for storage in storages]
    yield
    until = time.perf_counter() + _LONGEST_S
    while any(_num_holders(one) > num for one, num in zip(storages, before, strict=True)):
        if time.perf_counter() > until:
            return
        time.sleep(0)


def _num_holders(storage: torch.UntypedStorage) -> int:
    """The references to a storage, for which torch has no public call."""
    return int(torch._C._storage_Use_Count(storage._cdata))
