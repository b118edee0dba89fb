"""The folder for sockets of this machine, whose paths have a limit that a long TMPDIR can exceed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import Final

_LONGEST: Final = 103
"""The longest path of a socket, in bytes: macOS takes 103, Linux 107."""

_NAME: Final = 48
"""Room for what processes put below the folder: `/pymp-abcdefgh/listener-abcdefgh`, or wandb-core's own name."""

_SHORT: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run/user/{uid}")


def socket_folder() -> str:
    """The folder for temporary files, or a usual one in its place where paths of sockets in it would be too long.

    Raises:
        OSError: there is none.
    """
    usual = tempfile.gettempdir()
    if not hasattr(os, "getuid") or _fits(usual):  # Windows has pipes instead
        return usual
    for pattern in _SHORT:
        folder = pattern.format(uid=os.getuid())
        if _fits(folder) and Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise OSError(f"the path of TMPDIR is too long for sockets ({usual}), and nothing can be written to /tmp")


@contextmanager
def short_socket_paths() -> Iterator[None]:
    """Have multiprocessing choose the folder of its sockets, which it does once, where their paths are not too long."""
    before, tempfile.tempdir = tempfile.tempdir, socket_folder()
    try:
        util.get_temp_dir()
        yield
    finally:
        tempfile.tempdir = before


def _fits(folder: str) -> bool:
    return len(os.fsencode(folder)) <= _LONGEST - _NAME
