"""The machine of a user who has never worked with the suite: an empty home, nobody logged in to W&B."""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def users_machine(directory: Path, home: Path, temporary: Path) -> Iterator[None]:
    """Works in `directory`, which is empty, with an empty home, where nobody has logged in to W&B."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("WANDB_", "AMPSWEEP_")) or name == "NETRC"]:
            patch.delenv(name)
        for name in ("HOME", "USERPROFILE", "WANDB_CONFIG_DIR"):
            patch.setenv(name, str(home))
        patch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("TMPDIR", str(temporary))  # where device locks are
        patch.setattr(tempfile, "tempdir", str(temporary))
        patch.chdir(directory)
        yield
    root.handlers[:], root.level = handlers, level  # Hydra's writes to a stream that ends with the test
