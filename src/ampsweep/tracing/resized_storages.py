"""Storages that are resized by no operator: FSDP frees gathered parameters so, and allocates them again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import UntypedStorage


@contextmanager
def following_resizes(note: Callable[[UntypedStorage, int], None]) -> Iterator[None]:
    """Call `note` with each storage that is resized inside, in any thread, and the bytes it had before.

    No mode of torch's sees that; its own `torch.distributed._tools.mem_tracker` takes the method's place, too.
    """
    inner = UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        before = storage.nbytes()
        resized = inner(storage, size)
        note(storage, before)
        return resized

    own = vars(UntypedStorage).get("resize_")
    UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        if own is None:
            del UntypedStorage.resize_
        else:
            UntypedStorage.resize_ = own  # type: ignore[method-assign]
