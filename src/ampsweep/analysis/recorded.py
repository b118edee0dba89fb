"""Parts of records in words: compilations, and operators that a prediction does not vouch for."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ampsweep.record.compilation import Compilation
from ampsweep.record.parts import Doubt, UnvouchedOperator
from ampsweep.text import listed, number, plural

_MOST: Final = 3
"""Breaks, and repetitions, that are told one by one."""
_DOUBTS: Final[dict[Doubt, str]] = {
    "custom": "not torch's own, so that only its author knows what its kernel takes",
    "differs": "in this version of torch its kernel takes other memory than is predicted",
    "workspace": "the library behind it chooses a workspace while it runs, which the peak does not have",
    "varies": "one of them is predicted: step 2's, or that which a run's peak was seen with",
}


def compiled(of: Compilation) -> str:
    """Graphs and seconds: '2 graphs in 8.1 s'."""
    if not of.num_graphs:
        return "nothing: torch.compile found nothing to compile, and every step ran eagerly"
    return f"{plural(of.num_graphs, 'graph')} in {number(of.seconds or 0.0)} s"


def compiled_remarks(of: Compilation) -> Iterator[str]:
    """Yield a line for breaks of the graph, and one for compilations after the first."""
    if of.graph_breaks:
        breaks = [one.reason if one.place is None else f"{one.place}: {one.reason}" for one in of.graph_breaks]
        yield f"{plural(len(of.graph_breaks), 'graph break')}: {_first(breaks)}"
    if of.recompilations:
        late = sum(not one.in_warmup for one in of.recompilations)
        after = f" ({late} after warm-up)" if late else ""
        told = dict.fromkeys(f"step {one.step}, {one.reason}" for one in of.recompilations)
        yield f"{plural(len(of.recompilations), 'recompilation')}{after}: {_first([*told])}"


def _first(told: Sequence[str]) -> str:
    more = len(told) - _MOST
    return "; ".join([*told[:_MOST], *([f"and {more} more"] if more > 0 else [])])


def unvouched(operators: Sequence[UnvouchedOperator]) -> Iterator[str]:
    """Yield a sentence for each reason, with the operators it holds for and the modules that call them."""
    for doubt, reason in _DOUBTS.items():
        named = [_called(one) for one in operators if one.doubt == doubt]
        if named:
            yield f"Not vouched for: {', '.join(named)}: {reason}."


def not_vouched_for(names: Iterable[str]) -> str:
    """The clause that names the operators after a prediction, with its semicolon; the empty text for none."""
    named = sorted({*names})
    return f"; not vouched for: the memory of {', '.join(named)}" if named else ""


def _called(operator: UnvouchedOperator) -> str:
    return f"{operator.name} in {listed(operator.modules, limit=2)}" if operator.modules else operator.name
