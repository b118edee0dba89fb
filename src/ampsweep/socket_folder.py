"""The folder for sockets of this machine, whose paths have a limit that a long TMPDIR can exceed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from typing import Final

_LONGEST: Final = 103 - 48
"""The longest path of the folder, in bytes: macOS takes 103 for a socket, and processes put up to 48 below it."""


def socket_folder() -> str:
    """The folder for temporary files, or /tmp where sockets in it had too long a path; raises OSError without any."""
    usual = tempfile.gettempdir()
    is_too_long = hasattr(os, "getuid") and len(os.fsencode(usual)) > _LONGEST  # Windows has pipes instead
    return "/tmp" if is_too_long else usual


@contextmanager
def short_socket_paths() -> Iterator[None]:
    """Have multiprocessing choose the folder of its sockets, which it does once, where their paths are not too long."""
    before, tempfile.tempdir = tempfile.tempdir, socket_folder()
    try:
        util.get_temp_dir()
        yield
    finally:
        tempfile.tempdir = before
