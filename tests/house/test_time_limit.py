"""A test that hangs is a failure, and the output of the suite shows where it hung."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_HANGING = """
import threading
import pytest

@pytest.fixture
def never_torn_down():
    yield
    threading.Event().wait(60)

def test_waits_twice(never_torn_down):
    threading.Event().wait()

def test_is_fine():
    pass
"""


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="without POSIX's signals a test that hangs ends its process")
def test_a_hang_fails_and_shows_all_stacks(repository: Path, tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text((repository / "pyproject.toml").read_text())
    (tmp_path / "test_hanging.py").write_text(_HANGING)
    limits = ("-o", "timeout=0.5", "-o", "faulthandler_timeout=2")
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "time_limit", *limits, "test_hanging.py"]
    environment = {**os.environ, "PYTHONPATH": str(repository / "tests")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    for said in (
        *("Timeout", "crashed while running 'test_hanging.py::test_waits_twice'", "in never_torn_down", "1 passed"),
    ):
        assert said in done.stdout + done.stderr
