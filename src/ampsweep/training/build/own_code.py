"""Hashes of the user's own code that a training runs, which no config and no version number identifies."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ampsweep.own_code_place import is_own_source


def own_code(*parts: Any) -> dict[str, str]:
    """Map each of the user's own modules that built `parts` to eight hex digits of its source.

    These are the modules of the `_target_`s in these parts of a config, once imported, and all modules whose functions,
    classes, objects or submodules they name; installed modules and the suite's own are left out.
    """
    modules = [found for part in parts for found in _modules_of(part)]
    digests: dict[str, str] = {}
    while modules:
        module = modules.pop()
        source = _own_source(module)
        if source is None or module.__name__ in digests:
            continue
        digests[module.__name__] = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
        modules += _named_by(module)
    return dict(sorted(digests.items()))


def _modules_of(value: Any) -> Iterator[ModuleType]:
    """Yield the loaded modules of all `_target_`s in a part of the config."""
    if isinstance(value, list):
        for item in value:
            yield from _modules_of(item)
    if isinstance(value, dict):
        name = str(value.get("_target_", ""))
        while name and name not in sys.modules:
            name = name.rpartition(".")[0]
        if name:
            yield sys.modules[name]
        for item in value.values():
            yield from _modules_of(item)


def _named_by(module: ModuleType) -> Iterator[ModuleType]:
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value
            continue
        # An instance is not asked itself: a lazy one would load what it stands for.
        name = (value if isinstance(value, type | FunctionType) else type(value)).__module__
        if isinstance(name, str) and name in sys.modules:
            yield sys.modules[name]


def _own_source(module: ModuleType) -> Path | None:
    """Find the module's file; None if it belongs to the suite or is installed."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "ampsweep":
        return None
    path = Path(file).resolve()
    return path if is_own_source(path) and path.is_file() else None
