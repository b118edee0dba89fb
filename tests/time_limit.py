"""A limit for what comes after a test's first failure; before that pytest has its own (see `pyproject.toml`)."""

import faulthandler
import os

import pytest

_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)  # nothing is captured yet


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """End the process, with all stacks, where the teardown of a failed test hangs: pytest has taken its limit back."""
    if isinstance(node, pytest.Item):
        limit_s = float(node.config.getini("faulthandler_timeout"))
        faulthandler.dump_traceback_later(limit_s, file=node.config.stash[_STDERR], exit=True)
