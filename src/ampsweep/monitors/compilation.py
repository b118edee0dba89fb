"""When torch.compile compiles."""

import sys
from typing import Any


class CompilationWatch:
    """Notes compilations between `begin` and `end`, by anybody in this process; costs nothing where there are none.

    torch tells of them under a private name alone: the callbacks of `torch._dynamo`.
    """

    def __init__(self) -> None:
        self.compiled = False
        """Something was compiled; who reads it sets it back."""
        self._handler: Any = None

    def begin(self) -> None:
        """Begin to watch; of no use before the first compilation, which loads what is watched."""
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
