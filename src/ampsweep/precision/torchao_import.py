"""The one place that imports torchao, an optional package that says things on import which are no concern of a user."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from ampsweep.config.modes import NO_TORCHAO
from ampsweep.precision.support import ModeUnavailableError

_IDLE_WORDS: Final = {
    "torchao": "Failed to load ",
    "torchao.kernel.intmm": "Warning: Detected no triton",
    "torch.utils._pytree": "<enum '",
}
"""Beginnings of warnings by logger. torchao 0.18 tries every C++ extension in its wheel and Triton, and goes on without
those that are for another torch or Python; it registers enumerations in a way that torch 2.13 calls outdated."""


class MissingTorchaoError(ModeUnavailableError):
    """Raised where torchao is needed and not installed; the text is a sentence for the user."""


def require_torchao(needed_by: str) -> None:
    """Raise a `MissingTorchaoError` if torchao is not installed; `needed_by` is the user's setting that needs it."""
    if find_spec("torchao") is None:
        raise MissingTorchaoError(NO_TORCHAO.format(needed_by))


def import_torchao(module: str, needed_by: str) -> ModuleType:
    """Import a module of torchao without its warnings; raise a `MissingTorchaoError` if it is not installed."""
    require_torchao(needed_by)
    with _without_idle_words(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=SyntaxWarning)
        return import_module(module)


@contextmanager
def _without_idle_words() -> Iterator[None]:
    def says_more(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_IDLE_WORDS[record.name])

    loggers = [*map(logging.getLogger, _IDLE_WORDS)]
    for logger in loggers:
        logger.addFilter(says_more)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(says_more)
