"""The part of a run record on compilation: graphs, breaks, repetitions, time and cache."""

from dataclasses import dataclass

from ampsweep.record.parts import Part


@dataclass(frozen=True, kw_only=True)
class GraphBreak:
    """A line at which torch.compile ends a graph and begins another."""

    reason: str
    """The first line of torch's reason."""
    place: str | None = None
    """`nets.py, line 12`."""


@dataclass(frozen=True, kw_only=True)
class Recompilation:
    """A function that was compiled once more, within a step, as its code for other inputs or settings did not fit."""

    step: int
    """The number of the step within its process, from 1."""
    reason: str
    """The condition that did not hold, in torch's words."""
    place: str | None = None
    """The beginning of the function."""
    in_warmup: bool = False
    """The step was one of warm-up, so that the compilation is in no figure of time."""


@dataclass(kw_only=True)
class Compilation(Part):
    """The work of torch.compile in the run's last process, evaluations included; absent if nothing was compiled."""

    num_graphs: int | None = None
    """Graphs captured, each with its backward."""
    seconds: float | None = None
    """Time of all compilations, those that found their kernels in the cache included."""
    num_cached: int | None = None
    """Graphs, forward and backward counted apart, whose kernels were found in the cache on disk."""
    num_uncached: int | None = None
    """Graphs whose kernels were not, and had to be generated and compiled."""
    cache: str | None = None
    """The directory of that cache."""
    graph_breaks: list[GraphBreak] | None = None
    """Each once."""
    recompilations: list[Recompilation] | None = None
    """Those within steps."""
