"""The part of a run record on compilation: graphs, breaks, repetitions and time."""

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
    """A function that was compiled once more, within a step."""

    step: int
    """From 1 within its process."""
    reason: str
    """The condition that did not hold, in torch's words."""
    place: str | None = None
    """The beginning of the function."""
    in_warmup: bool = False
    """The compilation is then in no figure of time."""


@dataclass(kw_only=True)
class Compilation(Part):
    """The work of torch.compile in the run's last process, evaluations included; absent if nothing was compiled."""

    num_graphs: int | None = None
    """Graphs captured, each with its backward."""
    seconds: float | None = None
    graph_breaks: list[GraphBreak] | None = None
    """Each once."""
    recompilations: list[Recompilation] | None = None
    """Those within steps."""
