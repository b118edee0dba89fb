"""Compilations in words: how many graphs, in what time, with which breaks and repetitions."""

from collections.abc import Iterator, Sequence

from ampsweep.record.compilation import Compilation, GraphBreak, Recompilation
from ampsweep.text import number, plural

_MOST = 3
"""Breaks, and repetitions, that are told one by one."""


def compiled(of: Compilation) -> str:
    """Tell graphs, seconds and the cache, whose entries are forward or backward: '2 graphs in 8.1 s; cache: 3 found, 1
    made'.
    """
    if not of.num_graphs:
        return "nothing: torch.compile found nothing to compile, and every step ran eagerly"
    found, made = of.num_cached or 0, of.num_uncached or 0
    cache = f"; cache: {found} found, {made} made" if found + made else ""
    return f"{plural(of.num_graphs, 'graph')} in {number(of.seconds or 0.0)} s{cache}"


def remarks(of: Compilation) -> Iterator[str]:
    """Yield a line for breaks of the graph, and one for compilations after the first."""
    if of.graph_breaks:
        yield f"{plural(len(of.graph_breaks), 'graph break')}: {_listed([*map(graph_break, of.graph_breaks)])}"
    if of.recompilations:
        late = sum(not one.in_warmup for one in of.recompilations)
        after = f" ({late} after warm-up)" if late else ""
        told = _listed(list(dict.fromkeys(map(recompilation, of.recompilations))))
        yield f"{plural(len(of.recompilations), 'recompilation')}{after}: {told}"


def graph_break(of: GraphBreak) -> str:
    """Tell where the graph breaks, and torch's reason."""
    return of.reason if of.place is None else f"{of.place}: {of.reason}"


def recompilation(of: Recompilation) -> str:
    """Tell the step, and torch's reason."""
    return f"step {of.step}, {of.reason}"


def _listed(told: Sequence[str]) -> str:
    more = len(told) - _MOST
    return "; ".join([*told[:_MOST], *([f"and {more} more"] if more > 0 else [])])
