"""Autocast as the user's own code asked for it: without CUDA `torch.autocast("cuda")` turns itself off and forgets."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch

_ASKED: Final = "asked_by_user"
"""The attribute that a noted autocast has: its argument `enabled`."""


@contextmanager
def noting_autocast() -> Iterator[None]:
    """Note of each `torch.autocast` that is made inside, where the user's modules are imported, what it is to be."""
    original = torch.autocast.__init__

    @functools.wraps(original)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            original(self, device_type, *args, **kwargs)
        setattr(self, _ASKED, kwargs.get("enabled", args[1] if len(args) > 1 else True))
        for one in said:  # torch's words, at the user's line
            warnings.warn(one.message, one.category, stacklevel=2)

    with patch.object(torch.autocast, "__init__", init):
        yield


def was_asked(autocast: torch.autocast) -> bool:
    """Tell whether an autocast was to be enabled; of one that was not noted, whether it is."""
    return bool(getattr(autocast, _ASKED, autocast._enabled))
