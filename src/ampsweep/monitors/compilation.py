"""Compilations by torch.compile during a training: graphs, graph breaks, recompilations and time."""

import sys
from pathlib import Path
from traceback import FrameSummary
from typing import Any, Final

from ampsweep.records.sections import Compilation, GraphBreak, Recompilation
from ampsweep.text import first_line
from ampsweep.user_code import is_own_source, shown_path

_IN_CALL: Final = "what is called here breaks the graph"  # torch gives no reason


class CompilationWatch:
    """Notes compilations in this process between `begin` and `end`; free for steps without compilations. The callbacks,
    metrics and list of breaks are private names of `torch._dynamo`, which only logs them."""

    def __init__(self) -> None:
        self.compiled = False  # True if something was compiled since the last `settle`
        self._dynamo: Any = None
        self._last_read: Any = None
        self._unsettled: list[Any] = []
        self._num_graphs, self._microseconds = 0, 0
        self._recompilations: list[Recompilation] = []
        self._breaks: list[Any] = []

    def begin(self) -> None:
        """Begin to watch if torch._dynamo is loaded, without which nothing is compiled; safe to call again."""
        dynamo = sys.modules.get("torch._dynamo")  # importing it would take a second
        if dynamo is None or self._dynamo is not None:
            return
        self._dynamo = dynamo
        self._last_read = next(reversed(dynamo.utils.get_compilation_metrics()), None)
        self._breaks = list(dynamo.utils.graph_break_reasons)
        self._num_breaks_before = len(self._breaks)
        dynamo.callback.callback_handler.register_start_callback(self._note)

    def settle(self, step: int | None, *, is_warmup: bool = False) -> None:
        """Attribute the compilations since the last call to a step, or with None to an evaluation or the like."""
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
        """Stop watching, and attribute the remaining compilations to no step."""
        if self._dynamo is None:
            return
        self.settle(None)
        self._dynamo.callback.callback_handler.remove_start_callback(self._note)
        self._dynamo = None

    def found(self) -> Compilation:
        if not self._microseconds:
            return Compilation()
        breaks = [_graph_break(reason) for reason in self._breaks[self._num_breaks_before :]]
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
        known = next((place for place, entry in enumerate(metrics) if entry is self._last_read), -1)
        self._unsettled += metrics[known + 1 :]
        self._last_read = metrics[-1] if metrics else None
        seen = {id(reason) for reason in self._breaks}
        self._breaks += [reason for reason in self._dynamo.utils.graph_break_reasons if id(reason) not in seen]


def _graph_break(reason: Any) -> GraphBreak:
    """The first line of a reason, and the innermost line of the user's own code, or else of any code."""
    stack: list[FrameSummary] = list(reason.user_stack)
    own = [frame for frame in stack if is_own_source(Path(frame.filename))] or stack
    place = _place_of(own[-1].filename, own[-1].lineno) if own else None
    clause = _clause(reason.reason)
    return GraphBreak(reason=_IN_CALL if clause == "step_unsupported" else clause, place=place)


def _place_of(file: str | None, line: int | None) -> str | None:
    return None if file is None else f"{shown_path(Path(file))}, line {line}"


def _clause(reason: str) -> str:
    return first_line(reason.partition("  # ")[0])  # without the source line that torch appends as a comment
