"""The folder for sockets: their paths have a length limit that a long TMPDIR can exceed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util
from typing import Final

_LONGEST: Final = 103 - 48
"""Bytes of the longest possible folder: macOS limits a socket's path to 103, of which up to 48 are below the folder."""


def socket_folder() -> str:
    """The temporary folder, or /tmp if its path is too long; OSError without any temporary folder."""
    usual = tempfile.gettempdir()
    is_too_long = hasattr(os, "getuid") and len(os.fsencode(usual)) > _LONGEST  # Windows has pipes instead
    return "/tmp" if is_too_long else usual


@contextmanager
def short_socket_paths() -> Iterator[None]:
    """Make multiprocessing, which does so once, choose a folder for its sockets with a short path."""
    before, tempfile.tempdir = tempfile.tempdir, socket_folder()
    try:
        util.get_temp_dir()
        yield
    finally:
        tempfile.tempdir = before
