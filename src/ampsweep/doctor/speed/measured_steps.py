"""All that was measured of a training's steps, which every cause is looked for in."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, TypeVar

from ampsweep.doctor.diagnosis import Change, DoctorFinding
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.speed.bare_training import BareTraining
from ampsweep.doctor.speed.device_rates import DeviceRates
from ampsweep.doctor.speed.step_times import Ratio, StepTimes
from ampsweep.doctor.speed.timed_calls import TimedCall, TimedStep
from ampsweep.monitors.step_clock import Moments

MIN_COST_PCT: Final = 10.0
"""Share of a step from which a cause is told."""
_LITTLE_GAIN: Final = 1.2
"""A speedup below this is what people complain of."""
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")
_MAX_MODULES: Final = 20


class SpeedFinding(DoctorFinding):
    """Something that keeps a training from gaining time."""

    severity = "warning"
    complaint = "speed"
    step_ms: float


Kind = TypeVar("Kind", bound=SpeedFinding)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The steps in float32, and how the own ones compare."""

    times: StepTimes
    step: TimedStep
    speedup: Ratio
    """Time in float32 over the own time."""
    bound: float
    """The largest speedup that the precision can bring."""


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """The steps of one training, in its own precision and in float32."""

    patient: Patient
    training: BareTraining
    moments: Moments
    rates: DeviceRates
    times: StepTimes
    step: TimedStep
    us_to_launch: float
    """The host's time for an operator on a vanishing tensor."""
    baseline: Baseline | None
    """None where the training computes in float32 itself."""

    @property
    def step_ms(self) -> float:
        """Time of the own step that shares are taken of: the sum of its operators, the host's code and launching.

        On a busy machine hardly any step is undisturbed as a whole, but most operators are in one of several.
        """
        launching_ms = len(self.step.calls) * self.us_to_launch / 1e3
        return self.step.operators_ms + self.step.idle_ms + launching_ms

    @property
    def gains_little(self) -> bool:
        """Tell whether the step is hardly faster than in float32."""
        return self.baseline is not None and self.baseline.speedup.median < _LITTLE_GAIN

    def share_pct(self, ms: float) -> float:
        """The share of the own step that takes this time, in percent."""
        return min(100 * ms / self.step_ms, 100.0)

    def finding(self, kind: type[Kind], spot: "Spot", overrides: Sequence[str] = (), **facts: Any) -> Kind:
        """A finding of a spot, which costs its time."""
        return kind(
            cost_pct=self.share_pct(spot.ms),
            modules=spot.modules,
            operator=spot.operator,
            place=spot.place,
            step_ms=self.step_ms,
            change=Change(overrides=[*overrides]),
            **facts,
        )


@dataclass(frozen=True)
class Spot:
    """A part of the model in which something costs time: modules that differ in numbers only (`blocks.0`, `blocks.1`)
    or that one line calls; or a line outside of all modules."""

    modules: list[str]
    """The one that it costs most in comes first, and before it the one that holds them all if they are of different
    kinds; empty outside the model."""
    place: str | None
    """The line that it costs most at."""
    operator: str
    """The operator that it costs most in."""
    ms: float
    calls: tuple[TimedCall, ...]

    @property
    def innermost(self) -> list[str]:
        """The modules themselves that call the operators."""
        return [name for name in self.modules if any(one.call.module == name for one in self.calls)]


Costs = Iterable[tuple[TimedCall, float]]
"""Calls, each with the ms that something about it costs."""


def spots(costs: Costs, *, by_line: bool = False) -> list[Spot]:
    """Put together what calls cost by where they are made; the dearest spot comes first.

    Args:
        by_line: put together modules, too, that one line of one parent calls.
    """
    found: dict[tuple[str, ...], list[tuple[TimedCall, float]]] = {}
    for one, ms in costs:
        module, place = one.call.module, one.call.place
        if module is None:
            key: tuple[str, ...] = ("line", str(place))
        elif by_line and place is not None:
            key = (_unnumbered(module).rpartition(".")[0], place)
        else:
            key = (_unnumbered(module),)
        found.setdefault(key, []).append((one, ms))
    return sorted((_spot(own) for own in found.values()), key=lambda spot: -spot.ms)


def _unnumbered(module: str) -> str:
    return _NUMBER.sub("*", module)


def _spot(costs: Sequence[tuple[TimedCall, float]]) -> Spot:
    modules, places, operators = (defaultdict[str, float](float) for _ in range(3))
    for one, ms in costs:
        operators[one.call.operator] += ms
        if one.call.module is not None:
            modules[one.call.module] += ms
        if one.call.place is not None:
            places[one.call.place] += ms
    names = sorted(modules, key=lambda name: -modules[name])
    return Spot(
        modules=[*_common_parent(names), *names][:_MAX_MODULES],
        place=max(places, key=lambda line: places[line], default=None),
        operator=max(operators, key=lambda name: operators[name]),
        ms=sum(ms for _, ms in costs),
        calls=tuple(one for one, _ in costs),
    )


def _common_parent(names: Sequence[str]) -> list[str]:
    """The module that holds the first one and those of other kinds, if it is not the model itself."""
    kinds = {_unnumbered(name) for name in names}
    levels = zip(*(kind.split(".") for kind in kinds), strict=False)
    num_common = len([*takewhile(lambda level: len(set(level)) == 1, levels)])
    parent = ".".join(names[0].split(".")[:num_common]) if len(kinds) > 1 else ""
    return [parent] if parent and parent not in names else []
