"""Functions that are called in processes of their own exist under the names that their callers know."""

import inspect
import re
from pathlib import Path

import pytest

import ampsweep
from ampsweep.launch.child import NamedFunction

NAME = re.compile(r'NamedFunction\[.+\]\(\s*"([\w.]+:\w+)"')
SOURCE = Path(ampsweep.__path__[0])
NAMES = sorted(name for path in SOURCE.rglob("*.py") for name in NAME.findall(path.read_text(encoding="utf-8")))


def test_each_name_stands_in_one_place():
    assert len(NAMES) == len(set(NAMES)) > 5


@pytest.mark.parametrize("name", NAMES)
def test_a_named_function_exists(name):
    loaded = NamedFunction(name).load()
    assert inspect.isfunction(loaded)
    assert name == f"{loaded.__module__}:{loaded.__qualname__}", "it is named where it is defined"
