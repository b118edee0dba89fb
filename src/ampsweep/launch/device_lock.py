"""Locks for one training at a time on a device, because two at once would distort each other's figures."""

import getpass
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from ampsweep.config.errors import UserError
from ampsweep.launch.signals import StopRequest

_POLL_S: Final = 0.2

Tell = Callable[[str], None]


@contextmanager
def held_locks(
    locks: Iterable["DeviceLock"], on_wait: Tell | None = None, stop: StopRequest | None = None
) -> Iterator[None]:
    """Hold locks, those of several processes maybe, each file once, among this user's processes on this machine.

    They are taken in one order, so that two processes which want the same ones do not wait for each other. While
    another process holds one of them, this one waits, after one call of `on_wait` with a sentence for the user. The
    operating system releases the locks of a process that dies.

    Raises:
        KeyboardInterrupt: `stop` is requested during the wait.
        UserError: a lock is no file, or cannot be written.
    """
    wait, files = _Wait(on_wait, stop), {lock.path: lock for lock in locks}
    with ExitStack() as held:
        for _, lock in sorted(files.items()):
            while not lock.taken(held):
                wait.once_more(f"waiting for {lock.device}: another training runs on it (lock {lock.path})")
        yield


@contextmanager
def free_devices(
    devices: Sequence[str], number: int = 1, on_wait: Tell | None = None, stop: StopRequest | None = None
) -> Iterator[tuple[str, ...]]:
    """Hold the first `number` of `devices` that are free, as soon as there are as many, and return their names.

    A process that waits holds none of them. The rest is as for `held_locks`.
    """
    assert 0 < number <= len(devices), devices
    wait = _Wait(on_wait, stop)
    with ExitStack() as held:
        while (taken := _free(devices, number, held)) is None:
            wait.once_more(_waiting_for(devices, number))
        yield taken


def check_lock(device: str) -> None:
    """Refuse a device whose lock could not be taken even if nobody held it.

    Raises:
        UserError: the lock is no file, or cannot be written.
    """
    with ExitStack() as held:
        DeviceLock(device, lock_path(device, os.environ)).taken(held)


def lock_path(device: str, environment: Mapping[str, str]) -> Path:
    """The lock file of a device, the same for all processes, whatever index the device has in their `environment`."""
    user = str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()
    name = re.sub(r"[^\w.-]", "-", _physical_name(device, environment))
    return Path(tempfile.gettempdir()) / f"ampsweep-{user}-{name}.lock"


class _Wait:
    """A wait for others, told once."""

    def __init__(self, on_wait: Tell | None, stop: StopRequest | None) -> None:
        self._on_wait, self._stop = on_wait, stop

    def once_more(self, sentence: str) -> None:
        if self._on_wait is not None:
            self._on_wait(sentence)
            self._on_wait = None
        if self._stop is not None and self._stop.requested:
            raise KeyboardInterrupt from None
        time.sleep(_POLL_S)


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


def locks_of(devices: Sequence[str]) -> list[DeviceLock]:
    """The locks of `devices` (names such as "cpu" or "cuda:1"), each once, in the order in which they are taken.

    Raises:
        ValueError: CUDA_VISIBLE_DEVICES leaves one of them out.
    """
    paths = {lock_path(device, os.environ): device for device in devices}
    return [DeviceLock(device, path) for path, device in sorted(paths.items())]


def _free(devices: Sequence[str], number: int, held: ExitStack) -> tuple[str, ...] | None:
    """The first `number` free devices, held until `held` is left; None, and nothing held, if there are fewer."""
    taken: list[str] = []
    with ExitStack() as so_far:
        for index, device in enumerate(devices):
            if len(taken) + len(devices) - index < number:
                break  # another that wants as many may find them if this one takes no more
            with ExitStack() as of_device:
                if DeviceLock(device, lock_path(device, os.environ)).taken(of_device):
                    so_far.enter_context(of_device.pop_all())
                    taken.append(device)
            if len(taken) == number:
                held.enter_context(so_far.pop_all())
                return tuple(taken)
    return None


def _waiting_for(devices: Sequence[str], number: int) -> str:
    path = lock_path(devices[0], os.environ)
    if len(devices) == 1:
        return f"waiting for {devices[0]}: another training runs on it (lock {path})"
    wanted = "one" if number == 1 else str(number)
    return f"waiting for {wanted} of {', '.join(devices)}: other trainings run on them (locks such as {path})"


def _physical_name(device: str, environment: Mapping[str, str]) -> str:
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return kind
    index = index or "0"
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    is_partition = visible is not None and visible.strip().startswith("MIG-")
    if not is_partition and (uuid := _uuid(kind, index)) is not None:
        return f"{kind}-{uuid}"
    if kind != "cuda" or visible is None:
        return f"{kind}-{index}"
    # CUDA ignores everything from the first invalid entry on; -1 is the customary one.
    entries = [entry.strip() for entry in visible.split(",")]
    valid = list(takewhile(lambda entry: entry and not entry.startswith("-"), entries))
    if not index.isdecimal() or int(index) >= len(valid):
        raise ValueError(f"device {device} is not among the {len(valid)} of CUDA_VISIBLE_DEVICES={visible!r}")
    return f"{kind}-{valid[int(index)].removeprefix('GPU-').removeprefix('MIG-')}"


def _uuid(kind: str, index: str) -> str | None:
    """The UUID of a GPU that torch sees, the same for all processes: an index means another one in each environment,
    and CUDA_VISIBLE_DEVICES may name a GPU in several ways. None without torch or a UUID."""
    torch: Any = sys.modules.get("torch")  # whoever locks a GPU has it; the others do without
    if torch is None or kind != "cuda" or not torch.cuda.is_available():
        return None
    if not index.isdecimal() or int(index) >= torch.cuda.device_count():
        return None
    return str(torch.cuda.get_device_properties(int(index)).uuid)
