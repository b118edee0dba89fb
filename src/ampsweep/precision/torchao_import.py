"""The only module that imports torchao, an optional package."""

import logging
import warnings
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from ampsweep.precision.support import ModeUnavailableError


class MissingTorchaoError(ModeUnavailableError):
    """torchao is needed and not installed; the text is a sentence for the user."""


def require_torchao(needed_by: str) -> None:
    """Raise a `MissingTorchaoError` naming the setting that needs torchao, if it is not installed."""
    if find_spec("torchao") is None:
        raise MissingTorchaoError(f"{needed_by} needs the optional package torchao: pip install -e '.[modes]'")


def import_torchao(module: str, needed_by: str) -> ModuleType:
    """Import a module of torchao without its warnings; raise a `MissingTorchaoError` if it is not installed.

    torchao 0.18 tries every C++ extension in its wheel, and warns about those built for another torch.
    """
    require_torchao(needed_by)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            return import_module(module)
    finally:
        logging.disable(before)
