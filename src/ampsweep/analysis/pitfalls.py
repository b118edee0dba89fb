"""Known pitfalls of the dtypes that an arm trains in, each told only where the arm's records have its facts.

The figures are those of the formats (`numeric_formats`): of a number with p binary digits rounding to the nearest loses
every change of less than 2**-(p + 1) of it. Where a mode computes in a way of its own, nothing is told of its updates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ampsweep.analysis.runs import Run
from ampsweep.config.modes import mode_of
from ampsweep.numeric_formats import FORMATS

PitfallKind = Literal["vanishing updates", "stuck moment", "no scaler", "sums over micro-batches", "sums over ranks"]

_NARROW: Final = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Pitfall:
    """One pitfall with its figures."""

    kind: PitfallKind
    dtype: str
    figures: Mapping[str, float] = field(default_factory=dict)
    """`lost_below`: share of a number under which a change of it vanishes; `decay`: the share that a step takes off;
    `zero_below`: magnitude under which a number becomes zero; `num_summed`: numbers that are added up."""


def pitfalls(runs: Sequence[Run]) -> tuple[Pitfall, ...]:
    """The pitfalls of the arm of `runs`, at least one; none of an arm whose records have no dtypes."""
    first = next((run for run in runs if run.dtypes), None)
    return () if first is None else tuple(_pitfalls(first))


def _pitfalls(run: Run) -> Iterator[Pitfall]:
    dtypes, config = run.dtypes, run.record.config
    parameters, state = dtypes.get("parameters", ""), dtypes.get("optimizer_state", "")
    if parameters in _NARROW and _is_updated_by_optimizer(run):
        yield Pitfall(kind="vanishing updates", dtype=parameters, figures={"lost_below": _lost_below(parameters)})
    decay = _decay(config)
    if state in _NARROW and decay is not None and 0 < decay < _lost_below(state) and _is_updated_by_optimizer(run):
        figures = {"decay": decay, "lost_below": _lost_below(state)}
        yield Pitfall(kind="stuck moment", dtype=state, figures=figures)
    if parameters == "float16" and not _section(config, "precision").get("grad_scaler"):
        zero_below = 2.0 ** (FORMATS["float16"].min_exponent - 1)
        yield Pitfall(kind="no scaler", dtype=parameters, figures={"zero_below": zero_below})
    yield from _narrow_sums(run)


def _narrow_sums(run: Run) -> Iterator[Pitfall]:
    """Gradients of several micro-batches, or of several ranks, that are added up in a narrow dtype."""
    identity = run.record.identity
    sums: tuple[tuple[PitfallKind, str, int], ...] = (
        ("sums over micro-batches", "gradients", identity.grad_accum_steps),
        ("sums over ranks", "reduction", identity.world_size),
    )
    for kind, name, count in sums:
        dtype = run.dtypes.get(name, "")
        if count > 1 and dtype in _NARROW:
            yield Pitfall(kind=kind, dtype=dtype, figures={"num_summed": count, "lost_below": _lost_below(dtype)})


def _is_updated_by_optimizer(run: Run) -> bool:
    """True if torch's optimizer updates the parameters itself, rounding to the nearest."""
    mode = mode_of(run.arm)
    return mode is not None and mode.implementation is None


def _lost_below(dtype: str) -> float:
    return 2.0 ** -(FORMATS[dtype].digits + 1)


def _decay(config: Mapping[str, Any]) -> float | None:
    """The share of Adam's second moment that a step takes off; None of other optimizers."""
    beta2 = _section(config, "optimizer").get("beta2")
    return 1 - beta2 if isinstance(beta2, int | float) else None


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = config.get(key)
    return found if isinstance(found, Mapping) else {}
