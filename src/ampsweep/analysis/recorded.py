"""Sentences on compilations and on operators that a prediction does not vouch for."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ampsweep.records.sections import Compilation, Doubt, UnvouchedOperator
from ampsweep.text import listed, number, plural

_MAX_LISTED: Final = 3
_DOUBTS: Final[dict[Doubt, str]] = {
    "custom": "not torch's own, so that only its author knows what its kernel takes",
    "differs": "in this version of torch its kernel takes other memory than is predicted",
    "workspace": "the library behind it chooses a workspace while it runs, which the peak does not have",
    "varies": "only one size is predicted: that of step 2, or of the step with the run's peak",
}


def compiled(of: Compilation) -> str:
    """'2 graphs in 8.1 s'."""
    if not of.num_graphs:
        return "nothing: torch.compile found nothing to compile, and every step ran eagerly"
    return f"{plural(of.num_graphs, 'graph')} in {number(of.seconds or 0.0)} s"


def compiled_remarks(of: Compilation) -> Iterator[str]:
    if of.graph_breaks:
        breaks = [at.reason if at.place is None else f"{at.place}: {at.reason}" for at in of.graph_breaks]
        yield f"{plural(len(of.graph_breaks), 'graph break')}: {_first(breaks)}"
    if of.recompilations:
        late = sum(not again.in_warmup for again in of.recompilations)
        after = f" ({late} after warm-up)" if late else ""
        reasons = dict.fromkeys(f"step {again.step}, {again.reason}" for again in of.recompilations)
        yield f"{plural(len(of.recompilations), 'recompilation')}{after}: {_first([*reasons])}"


def _first(clauses: Sequence[str]) -> str:
    more = len(clauses) - _MAX_LISTED
    return "; ".join([*clauses[:_MAX_LISTED], *([f"and {more} more"] if more > 0 else [])])


def unvouched(operators: Sequence[UnvouchedOperator]) -> Iterator[str]:
    for doubt, reason in _DOUBTS.items():
        of_doubt = [operator for operator in operators if operator.doubt == doubt]
        callers = [f" in {listed(operator.modules, limit=2)}" if operator.modules else "" for operator in of_doubt]
        named = [operator.name + modules for operator, modules in zip(of_doubt, callers, strict=True)]
        if named:
            yield f"Not vouched for: {', '.join(named)}: {reason}."


def not_vouched_for(names: Iterable[str]) -> str:
    """'; not vouched for: the memory of ...', to follow a prediction; empty without names."""
    named = sorted({*names})
    return f"; not vouched for: the memory of {', '.join(named)}" if named else ""
