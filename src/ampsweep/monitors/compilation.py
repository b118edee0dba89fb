"""Compilations by torch.compile during a training."""

import sys
from typing import Any


class CompilationWatch:
    """Notes compilations in this process between `begin` and `end`; costs nothing where there are none.

    torch announces them through callbacks of `torch._dynamo` alone, a private name.
    """

    def __init__(self) -> None:
        self.compiled = False
        """True once something was compiled; the reader resets it."""
        self._handler: Any = None

    def begin(self) -> None:
        """Begin to watch, if torch._dynamo is loaded: the first compilation loads it and cannot be noted."""
        dynamo = sys.modules.get("torch._dynamo")  # not imported for this: it takes a second
        if dynamo is not None:
            self._handler = dynamo.callback.callback_handler
            self._handler.register_start_callback(self._note)

    def end(self) -> None:
        """Stop watching."""
        if self._handler is not None:
            self._handler.remove_start_callback(self._note)
            self._handler = None

    def _note(self, _: Any) -> None:
        self.compiled = True
