"""Device locks: one training at a time on a device, because two would distort each other's figures."""

import getpass
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from ampsweep.config.errors import UserError
from ampsweep.launch.signal_handlers import StopRequest

_POLL_S: Final = 0.2

Say = Callable[[str], None]


@contextmanager
def held_locks(
    locks: Iterable["DeviceLock"],
    number: int | None = None,
    on_wait: Say | None = None,
    stop: StopRequest | None = None,
) -> Iterator[tuple[str, ...]]:
    """Hold the first `number` free locks, or all of them, and return their devices.

    The locks are per user and machine; a process's death releases them. While too few are free, none is held; before
    the wait `on_wait` is called once with a sentence for the user. Raises KeyboardInterrupt if `stop` is requested
    during the wait, UserError if a lock is no file or cannot be written.
    """
    files = {lock.path: lock for lock in locks}
    wanted = list(files.values()) if number is not None else [lock for _, lock in sorted(files.items())]
    needed = len(wanted) if number is None else number
    assert needed <= len(wanted), wanted
    with ExitStack() as held:
        while len(taken := _free(wanted, needed, held)) < needed:
            if on_wait is not None:
                on_wait(_waiting_for(wanted, needed, taken))
                on_wait = None
            if stop is not None and stop.requested:
                raise KeyboardInterrupt
            time.sleep(_POLL_S)
        yield tuple(lock.device for lock in taken)


def free_devices(
    devices: Sequence[str], number: int = 1, on_wait: Say | None = None, stop: StopRequest | None = None
) -> AbstractContextManager[tuple[str, ...]]:
    return held_locks(map(lock_of, devices), number, on_wait, stop)


def check_lock(device: str) -> None:
    """Raise UserError if the device's lock is no file, or cannot be written."""
    with ExitStack() as held:
        lock_of(device).taken(held)


@dataclass(frozen=True)
class DeviceLock:
    device: str
    path: Path

    def taken(self, held: ExitStack) -> bool:
        """Try to take the lock until `held` is left."""
        lock = FileLock(self.path)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            reason = "is a link" if self.path.is_symlink() else error.strerror
            raise UserError(f"the lock of device {self.device} cannot be taken: {self.path}: {reason}") from error
        held.callback(lock.release)
        return True


def lock_of(device: str) -> DeviceLock:
    """The lock of a device, whatever index the device has in this process."""
    user = str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()
    name = re.sub(r"[^\w.-]", "-", _physical_name(device))
    return DeviceLock(device, Path(tempfile.gettempdir()) / f"ampsweep-{user}-{name}.lock")


def _free(wanted: Sequence[DeviceLock], number: int, held: ExitStack) -> list[DeviceLock]:
    """The first `number` free locks, held until `held` is left; fewer are released at once."""
    with ExitStack() as so_far:
        taken = list(islice((lock for lock in wanted if lock.taken(so_far)), number))
        if len(taken) == number:
            held.enter_context(so_far.pop_all())
    return taken


def _waiting_for(wanted: Sequence[DeviceLock], number: int, taken: Sequence[DeviceLock]) -> str:
    busy = next(lock for lock in wanted if lock not in taken)
    if number == len(wanted):
        return f"waiting for {busy.device}: another training runs on it (lock {busy.path})"
    names, count = ", ".join(lock.device for lock in wanted), "one" if number == 1 else str(number)
    return f"waiting for {count} of {names}: other trainings run on them (locks such as {busy.path})"


def _physical_name(device: str) -> str:
    # The UUID of a GPU if possible: its index depends on CUDA_VISIBLE_DEVICES.
    kind, _, given = device.partition(":")
    torch: Any = sys.modules.get("torch")  # imported wherever a GPU is locked
    index = int(given or 0)
    if torch is not None and kind == "cuda" and torch.cuda.is_available() and index < torch.cuda.device_count():
        return f"{kind}-{torch.cuda.get_device_properties(index).uuid}"
    return kind if kind == "cpu" else f"{kind}-{index}"
