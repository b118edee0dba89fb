"""Lines at which torch.compile cannot follow a model, and begins another graph."""

import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from traceback import FrameSummary
from typing import Final

import torch
from torch import nn
from torch._dynamo.backends.debugging import ExplainWithBackend

from ampsweep.doctor.speed.measured_steps import MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.step_times import times_in_turn
from ampsweep.own_code import is_own_source, shown_path
from ampsweep.tasks.base import HasTurns

_SECONDS: Final = 1.0


class BrokenGraph(SpeedFinding):
    template = "torch.compile breaks its graph{inside}{at}"
    seen = (
        "{reason}",
        "the step has {num_graphs} graphs; going from one to the next and their guards take {guards_ms} of a step, "
        "without what could have been fused",
    )
    remedy = "write the line so that it can be traced, or take it out of the model"
    reason: str
    num_graphs: int
    num_breaks: int
    guards_ms: float

    @classmethod
    def kind(cls) -> str:
        return "graph_break"


def graph_breaks(measured: MeasuredSteps) -> list[BrokenGraph]:
    """Find the lines at which a step that is to be compiled breaks into several graphs.

    The graphs run eagerly, so that what is measured is the price of guards and of going from graph to graph. It is the
    least that breaks cost: what could have been fused across them is not in it.
    """
    if not measured.patient.config.trainer.compile:
        return []
    training, moments = measured.training, measured.moments
    explained = ExplainWithBackend("eager")
    with _compiled(_parts(measured), explained), _quiet_dynamo():
        step = partial(training.step, eager=False)
        step()
        broken, eager = times_in_turn([step, training.step], moments, seconds=_SECONDS, warmup=1)
    output = explained.output()
    measured.patient.facts["speed/num_graphs"] = output.graph_count
    found: dict[tuple[str, str | None], list[FrameSummary]] = {}
    for reason in output.break_reasons:
        if reason.graph_break:
            clause = reason.reason.partition("\n")[0].strip()
            found.setdefault((clause, _place(reason.user_stack)), list(reason.user_stack))
    guards_ms = max(broken.least_ms - eager.least_ms, 0.0)
    return [
        BrokenGraph(
            cost_pct=measured.share_pct(guards_ms) / len(found),
            modules=_modules(training.model, stack),
            place=place,
            step_ms=measured.step_ms,
            reason=clause.rstrip("."),
            num_graphs=output.graph_count,
            num_breaks=len(found),
            guards_ms=guards_ms,
        )
        for (clause, place), stack in found.items()
    ]


def _parts(measured: MeasuredSteps) -> list[nn.Module]:
    """The modules that the training compiles."""
    model = measured.training.model
    return [*model.children()] if isinstance(measured.training.trainer.task, HasTurns) else [model]


@contextmanager
def _compiled(parts: Sequence[nn.Module], backend: ExplainWithBackend) -> Iterator[None]:
    former = [part._compiled_call_impl for part in parts]
    torch._dynamo.reset()
    for part in parts:
        part.compile(backend=backend)
    try:
        yield
    finally:
        for part, call in zip(parts, former, strict=True):
            part._compiled_call_impl = call
        torch._dynamo.reset()


@contextmanager
def _quiet_dynamo() -> Iterator[None]:
    """Keep torch's own warnings of breaks off the terminal: the findings tell them."""
    logger = logging.getLogger("torch._dynamo")
    former = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(former)


def _place(stack: Sequence[FrameSummary]) -> str | None:
    own = [one for one in stack if is_own_source(Path(one.filename))]
    return f"{shown_path(Path(own[-1].filename))}, line {own[-1].lineno}" if own else None


def _modules(model: nn.Module, stack: Sequence[FrameSummary]) -> list[str]:
    """Names of the modules whose forward holds the innermost line that is any module's."""
    for frame in reversed(stack):
        found = [name for name, module in model.named_modules() if _holds(type(module), frame)]
        if found:
            return found
    return []


def _holds(kind: type[nn.Module], frame: FrameSummary) -> bool:
    try:
        lines, first = inspect.getsourcelines(kind.forward)
    except (OSError, TypeError):
        return False
    is_same = inspect.getsourcefile(kind.forward) == frame.filename
    return is_same and frame.lineno is not None and first <= frame.lineno < first + len(lines)
