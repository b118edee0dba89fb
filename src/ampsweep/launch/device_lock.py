"""A lock for one training at a time on a device, because two at once would distort each other's figures."""

import getpass
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from ampsweep.config.errors import UserError
from ampsweep.launch.signals import StopRequest

_POLL_S = 0.2


@contextmanager
def device_lock(
    device: str, on_wait: Callable[[str], None] | None = None, stop: StopRequest | None = None
) -> Iterator[None]:
    """Hold `device` (a torch device string such as "cpu" or "cuda:1") among this user's processes on this machine.

    While another process holds it, this one waits, after one call of `on_wait` with a sentence for the user. The
    operating system releases the lock of a process that dies. Raises KeyboardInterrupt if `stop` is requested during
    the wait, ValueError for a CUDA device that CUDA_VISIBLE_DEVICES leaves out, UserError where the lock is no file or
    cannot be written.
    """
    lock = FileLock(lock_path(device, os.environ))
    if not _taken(lock, device):
        if on_wait is not None:
            on_wait(f"waiting for {device}: another training runs on it (lock {lock.lock_file})")
        while not lock.is_locked:
            if stop is not None and stop.requested:
                raise KeyboardInterrupt from None
            with suppress(Timeout):
                lock.acquire(timeout=_POLL_S)
    try:
        yield
    finally:
        lock.release()


def check_lock(device: str) -> None:
    """Refuse a device whose lock could not be taken even if nobody held it.

    Raises:
        UserError: the lock is no file, or cannot be written.
    """
    lock = FileLock(lock_path(device, os.environ))
    _taken(lock, device)
    lock.release()


def _taken(lock: BaseFileLock, device: str) -> bool:
    """Take the lock, if nobody holds it."""
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except OSError as error:
        reason = "is a link" if Path(lock.lock_file).is_symlink() else error.strerror
        raise UserError(f"the lock of device {device} cannot be taken: {lock.lock_file}: {reason}") from error
    return True


def lock_path(device: str, environment: Mapping[str, str]) -> Path:
    """The lock file of a device, the same for all processes, whatever index the device has in their `environment`."""
    user = str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()
    name = re.sub(r"[^\w.-]", "-", _physical_name(device, environment))
    return Path(tempfile.gettempdir()) / f"ampsweep-{user}-{name}.lock"


def _physical_name(device: str, environment: Mapping[str, str]) -> str:
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return kind  # torch knows one CPU, whatever its index
    index = index or "0"
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if kind != "cuda" or visible is None:
        return f"{kind}-{index}"
    # CUDA ignores everything from the first invalid entry on; -1 is the customary one.
    entries = [entry.strip() for entry in visible.split(",")]
    valid = list(takewhile(lambda entry: entry and not entry.startswith("-"), entries))
    if not index.isdecimal() or int(index) >= len(valid):
        raise ValueError(f"device {device} is not among the {len(valid)} of CUDA_VISIBLE_DEVICES={visible!r}")
    return f"{kind}-{valid[int(index)]}"
