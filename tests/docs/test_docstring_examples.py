"""The examples in docstrings return what they show."""

import doctest
import importlib
from pathlib import Path

import ampsweep

ROOT = Path(ampsweep.__file__).parent


def test_examples_in_docstrings_hold():
    names = [
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(ROOT.rglob("*.py"))
        if ">>>" in path.read_text(encoding="utf-8")
    ]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert sum(result.attempted for result in results.values()) > 20
    assert [name for name, result in results.items() if result.failed] == []
