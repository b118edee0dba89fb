"""Checks that what a config names exists: code, data files and checkpoints, before anything that takes time begins.

Nothing is imported or read in full: the checks of a run's parts, which need torch and the device, come later and find
whatever passes here.
"""

import symtable
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

from ampsweep.config.errors import UserError
from ampsweep.config.schema import COMPONENTS, Config
from ampsweep.record import is_checkpoint, kept_checkpoints
from ampsweep.run.directories import checkpoint_path, existing_multirun
from ampsweep.text import one_line

_FILES: Final = ("path", "val_path")
"""Keys of our own data sets that name files."""
_MADE_LATER: Final = ("import *", "__getattr__", "globals(", "setattr(", "exec(")
"""Signs in a module that its names are not all in its source."""


def check_existence(configs: Iterable[Config]) -> None:
    """Check what these configs name, each thing once.

    Raises:
        UserError: the first thing that is not there.
    """
    seen: set[tuple[str, str]] = set()
    for config in configs:
        for group in COMPONENTS:
            component: dict[str, Any] = getattr(config, group)
            named = (group, str(component.get("_target_")))
            if "_target_" in component and named not in seen:
                seen.add(named)
                _check_target(*named)
        if str(config.data["_target_"]).startswith("ampsweep."):
            for file in (config.data.get(key) for key in _FILES):
                if file is not None and not Path(file).exists():
                    raise UserError(
                        f"data={config.data['name']}: data file {file} cannot be read: No such file or directory"
                    )
        if config.into is not None:
            existing_multirun(config.into)
        path = checkpoint_path(config)
        if path is not None and not is_checkpoint(path) and not kept_checkpoints(path):
            raise UserError(f"resume={config.resume}: {path} is neither a checkpoint nor a run directory with one")


def _check_target(group: str, target: str) -> None:
    """Follow a dotted name through packages to a module, and look for the next name in its source."""
    spec: ModuleSpec | None = None
    parts = target.split(".")
    for number, part in enumerate(parts):
        name = ".".join(parts[: number + 1])
        inner = _found(name, None if spec is None else spec.submodule_search_locations)
        if inner is None:
            fault = f"ModuleNotFoundError: No module named '{name}'" if spec is None else _missing(spec, part)
            if fault is not None:
                raise UserError(f"{group}._target_={target} does not import: {fault}")
            return
        spec = inner
        if spec.submodule_search_locations is None and number + 1 < len(parts):
            if (fault := _missing(spec, parts[number + 1])) is not None:
                raise UserError(f"{group}._target_={target} does not import: {fault}")
            return


def _found(name: str, places: Any) -> ModuleSpec | None:
    """Find a module without importing its parents, which could take any time."""
    if (loaded := sys.modules.get(name)) is not None and loaded.__spec__ is not None:
        return loaded.__spec__
    for finder in sys.meta_path:
        if (spec := finder.find_spec(name, places)) is not None:
            return spec
    return None


def _missing(spec: ModuleSpec, name: str) -> str | None:
    """The error of taking a name from a module, if its source can tell: a module that makes names cannot."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        source = Path(spec.origin).read_text(encoding="utf-8")
        if any(sign in source for sign in _MADE_LATER):
            return None
        names = symtable.symtable(source, spec.origin, "exec").get_identifiers()
    except SyntaxError as error:
        return one_line(error)
    except (OSError, ValueError):  # the import itself will tell
        return None
    return None if name in names else f"AttributeError: module '{spec.name}' has no attribute '{name}'"
