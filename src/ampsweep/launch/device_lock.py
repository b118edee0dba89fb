"""Locks for one training at a time on a device, because two at once would distort each other's figures."""

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
from ampsweep.launch.signals import StopRequest

_POLL_S: Final = 0.2

Tell = Callable[[str], None]


@contextmanager
def held_locks(
    locks: Iterable["DeviceLock"],
    number: int | None = None,
    on_wait: Tell | None = None,
    stop: StopRequest | None = None,
) -> Iterator[tuple[str, ...]]:
    """Hold the first `number` of these locks that are free, or all, each file once, and return their devices.

    They are locks among this user's processes on this machine, those of several processes maybe. While too few are
    free this process holds none and waits, after one call of `on_wait` with a sentence for the user. The operating
    system releases the locks of a process that dies.

    Raises:
        KeyboardInterrupt: `stop` is requested during the wait.
        UserError: a lock is no file, or cannot be written.
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
    devices: Sequence[str], number: int = 1, on_wait: Tell | None = None, stop: StopRequest | None = None
) -> AbstractContextManager[tuple[str, ...]]:
    """Hold the first `number` of `devices` that are free, as soon as there are as many; see `held_locks`."""
    return held_locks(map(lock_of, devices), number, on_wait, stop)


def check_lock(device: str) -> None:
    """Refuse a device whose lock could not be taken even if nobody held it.

    Raises:
        UserError: the lock is no file, or cannot be written.
    """
    with ExitStack() as held:
        lock_of(device).taken(held)


def lock_path(device: str) -> Path:
    """The lock file of a device, the same for all processes, whatever index the device has in them."""
    user = str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()
    name = re.sub(r"[^\w.-]", "-", _physical_name(device))
    return Path(tempfile.gettempdir()) / f"ampsweep-{user}-{name}.lock"


@dataclass(frozen=True)
class DeviceLock:
    """The file to lock for `device`."""

    device: str
    path: Path

    def taken(self, held: ExitStack) -> bool:
        """Take the lock if nobody holds it, until `held` is left."""
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
    """The lock of a device as this process sees it."""
    return DeviceLock(device, lock_path(device))


def _free(wanted: Sequence[DeviceLock], number: int, held: ExitStack) -> list[DeviceLock]:
    """The first free ones, held until `held` is left if they are as many as that."""
    with ExitStack() as so_far:
        taken = list(islice((lock for lock in wanted if lock.taken(so_far)), number))
        if len(taken) == number:
            held.enter_context(so_far.pop_all())
    return taken


def _waiting_for(wanted: Sequence[DeviceLock], number: int, taken: Sequence[DeviceLock]) -> str:
    busy = next(lock for lock in wanted if lock not in taken)
    if number == len(wanted):
        return f"waiting for {busy.device}: another training runs on it (lock {busy.path})"
    names, which = ", ".join(lock.device for lock in wanted), "one" if number == 1 else str(number)
    return f"waiting for {which} of {names}: other trainings run on them (locks such as {busy.path})"


def _physical_name(device: str) -> str:
    """The device's kind with the UUID of a GPU that torch sees, else with its index.

    An index means another GPU in each environment, and CUDA_VISIBLE_DEVICES may name a GPU in several ways.
    """
    kind, _, index = device.partition(":")
    torch: Any = sys.modules.get("torch")  # whoever locks a GPU has it; the others do without
    if kind == "cpu":
        return kind
    index = index or "0"
    if torch is None or kind != "cuda" or not torch.cuda.is_available() or int(index) >= torch.cuda.device_count():
        return f"{kind}-{index}"
    return f"{kind}-{torch.cuda.get_device_properties(int(index)).uuid}"
