"""Lines at which torch.compile cannot follow a model, and begins another graph."""

import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from traceback import FrameSummary
from typing import Final

import torch
from torch import nn
from torch._dynamo.backends.debugging import ExplainWithBackend

from ampsweep.doctor.speed.measured_steps import MeasuredSteps, SpeedFinding
from ampsweep.doctor.speed.step_times import times_in_turn
from ampsweep.monitors.compilation import graph_break
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

    The graphs run eagerly, so the measured price is that of guards and of going from graph to graph. Breaks cost at
    least that: what could have been fused across them is not in it.
    """
    if not measured.patient.config.trainer.compile:
        return []
    training = measured.training
    # The modules that the training compiles.
    parts = [*training.model.children()] if isinstance(training.trainer.task, HasTurns) else [training.model]
    explained = ExplainWithBackend("eager")
    with _compiled(parts, explained):
        step = partial(training.step, eager=False)
        step()
        broken, eager = times_in_turn([step, training.step], measured.moments, seconds=_SECONDS)
    output = explained.output()
    measured.patient.facts["speed/num_graphs"] = output.graph_count
    found = {graph_break(one): [*one.user_stack] for one in output.break_reasons if one.graph_break}
    guards_ms = max(broken.least_ms - eager.least_ms, 0.0)
    return [
        BrokenGraph(
            cost_pct=measured.share_pct(guards_ms) / len(found),
            modules=_modules(training.model, stack),
            place=one.place,
            step_ms=measured.step_ms,
            reason=one.reason.rstrip("."),
            num_graphs=output.graph_count,
            num_breaks=len(found),
            guards_ms=guards_ms,
        )
        for one, stack in found.items()
    ]


@contextmanager
def _compiled(parts: Sequence[nn.Module], backend: ExplainWithBackend) -> Iterator[None]:
    """Compile modules for a while, without torch's own warnings of breaks on the terminal."""
    former = [part._compiled_call_impl for part in parts]
    logger = logging.getLogger("torch._dynamo")
    level = logger.level
    logger.setLevel(logging.ERROR)
    torch._dynamo.reset()
    for part in parts:
        part.compile(backend=backend)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for part, call in zip(parts, former, strict=True):
            part._compiled_call_impl = call
        torch._dynamo.reset()
        logger.setLevel(level)


def _modules(model: nn.Module, stack: Sequence[FrameSummary]) -> list[str]:
    """Names of the modules whose forward holds the innermost line that is any module's."""
    for frame in reversed(stack):
        found = [name for name, module in model.named_modules() if _holds(type(module), frame)]
        if found:
            return found
    return []


def _holds(kind: type[nn.Module], frame: FrameSummary) -> bool:
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return code is not None and code.co_filename == frame.filename and frame.lineno in {n for *_, n in code.co_lines()}
