"""The compilations by torch.compile during a training: their graphs, breaks, repetitions and time."""

import sys
from pathlib import Path
from traceback import FrameSummary
from typing import Any, Final

from ampsweep.own_code import is_own_source, shown_path
from ampsweep.record.compilation import Compilation, GraphBreak, Recompilation

_OF_CALLED: Final = "what is called here breaks the graph"
"""The reason of a break for which torch has no words: one within a call that the line makes."""
_LONGEST: Final = 200
"""Characters of a reason."""


class CompilationWatch:
    """Notes compilations in this process between `begin` and `end`; costs a step nothing if there are none.

    The callbacks, metrics and list of breaks are private names of `torch._dynamo`: it only logs them.
    """

    def __init__(self) -> None:
        self.compiled = False
        """True if something was compiled since the last `settle`."""
        self._dynamo: Any = None
        self._last: Any = None
        """The newest metrics that have been read."""
        self._unsettled: list[Any] = []
        self._num_graphs, self._microseconds = 0, 0
        self._recompilations: list[Recompilation] = []
        self._breaks: list[Any] = []

    def begin(self) -> None:
        """Begin to watch, if torch._dynamo is loaded; until then nothing can be compiled. Another call does nothing."""
        dynamo = sys.modules.get("torch._dynamo")  # not imported for this: it takes a second
        if dynamo is None or self._dynamo is not None:
            return
        self._dynamo = dynamo
        self._last = next(reversed(dynamo.utils.get_compilation_metrics()), None)
        self._breaks = list(dynamo.utils.graph_break_reasons)
        self._num_breaks_before = len(self._breaks)
        dynamo.callback.callback_handler.register_start_callback(self._note)

    def settle(self, step: int | None, *, is_warmup: bool = False) -> None:
        """Put what was compiled since the last call down to a step; None: to an evaluation, or what else is no step."""
        self.compiled = False
        if self._dynamo is None:
            return
        self._read()
        for metrics in self._unsettled:
            self._microseconds += metrics.duration_us or 0
            if metrics.is_forward and metrics.graph_op_count:
                self._num_graphs += 1
            if step is not None and metrics.is_forward and metrics.recompile_reason:
                reason = _clause(metrics.recompile_reason.partition(": ")[2])
                place = _place_of(metrics.co_filename, metrics.co_firstlineno)
                self._recompilations.append(Recompilation(step=step, reason=reason, place=place, in_warmup=is_warmup))
        self._unsettled.clear()

    def end(self) -> None:
        """Stop watching; what was not put down to a step is to none."""
        if self._dynamo is None:
            return
        self.settle(None)
        self._dynamo.callback.callback_handler.remove_start_callback(self._note)
        self._dynamo = None

    def found(self) -> Compilation:
        """The facts of all compilations; empty if there were none, and complete after `end`."""
        if not self._microseconds:
            return Compilation()
        breaks = [graph_break(one) for one in self._breaks[self._num_breaks_before :]]
        return Compilation(
            num_graphs=self._num_graphs,
            seconds=self._microseconds / 1e6,
            graph_breaks=list(dict.fromkeys(breaks)),
            recompilations=self._recompilations,
        )

    def _note(self, _: Any) -> None:
        self.compiled = True
        self._read()  # torch keeps the last 64 only

    def _read(self) -> None:
        metrics = self._dynamo.utils.get_compilation_metrics()
        known = next((place for place, one in enumerate(metrics) if one is self._last), -1)
        self._unsettled += metrics[known + 1 :]
        self._last = metrics[-1] if metrics else None
        breaks = self._dynamo.utils.graph_break_reasons
        seen = {id(one) for one in self._breaks}
        self._breaks += [one for one in breaks if id(one) not in seen]


def graph_break(reason: Any) -> GraphBreak:
    """The first line of a reason, and the innermost of the user's own lines, or else of anybody's."""
    stack: list[FrameSummary] = list(reason.user_stack)
    own = [frame for frame in stack if is_own_source(Path(frame.filename))] or stack
    place = _place_of(own[-1].filename, own[-1].lineno) if own else None
    told = _clause(reason.reason)
    return GraphBreak(reason=_OF_CALLED if told == "step_unsupported" else told, place=place)


def _place_of(file: str | None, line: int | None) -> str | None:
    return None if file is None else f"{shown_path(Path(file))}, line {line}"


def _clause(reason: str) -> str:
    """The first line of a reason, without the source line that torch puts behind it as a comment."""
    line = reason.strip().partition("\n")[0].partition("  # ")[0].strip()
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
