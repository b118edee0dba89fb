"""Findings of state that low precision keeps from moving, and of integers that it rounds."""

from dataclasses import dataclass

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.loss.fault import FaultSigns
from ampsweep.text import percent


@dataclass(frozen=True, kw_only=True)
class TriedMovement(TriedChange):
    moved_pct: float

    @property
    def sentence(self) -> str:
        return f"tried: the movement is then {percent(self.moved_pct)} of that in float32"


@dataclass(frozen=True, kw_only=True)
class TriedExact(TriedChange):
    mends_loss: bool = False

    @property
    def sentence(self) -> str:
        return f"tried: these integers are then exact{', and the loss is right' if self.mends_loss else ''}"


class UpdatesLost(DoctorFinding):
    template = "{unchanged_pct} of weights with a gradient do not change in a step: {dtype} rounds their updates away"
    complaint = "loss"
    seen = (
        "updates are below half the spacing of {dtype}: in {num_steps} steps at the full learning rate the weights "
        "move by {moved_pct} of what float32 moves them",
    )
    remedy = "keep the exact weights, or round them stochastically"
    remedy_by_overrides = "let the optimizer update in float32"
    signs: FaultSigns | None = None  # None: the loss is not worse in as few steps
    dtype: str
    num_steps: int
    unchanged_pct: float
    moved_pct: float

    @property
    def evidence(self) -> list[str]:
        return [*([self.signs.sentence] if self.signs else []), *super().evidence]


class StuckState(DoctorFinding):
    template = "{all_state} stops moving in {dtype}{at}: what a step adds is rounded away"
    complaint = "numerics"
    seen = (
        "at its value after {num_steps} steps in float32, or half-way to where it comes to rest, {unchanged_pct} of it "
        "does not change in a step; it moves by {moved_pct} of what float32 moves it",
    )
    remedy = "keep it in float32"
    remedy_by_overrides = "keep it in float32"
    state: list[str]
    dtype: str
    num_steps: int
    unchanged_pct: float
    moved_pct: float

    @property
    def all_state(self) -> str:
        more = len(self.state) - 1
        return f"{self.state[0]} (and {more} more)" if more else self.state[0]


class IntegersRounded(DoctorFinding):
    complaint = "numerics"
    remedy = "make them in float32, or as integers"
    remedy_by_overrides = "keep them in float32"
    held: str | None  # the name of the tensor that holds them; None for the result of a call
    dtype: str
    exact: float  # the first integer that is rounded
    rounded: float
    num_rounded: int
    num_all: int
    effect_operator: str
    effect_place: str | None
    effect_pct: float | None  # the error of its result from these integers alone; None: it gets other indices

    @property
    def sentence(self) -> str:
        of = self.held or f"{self.operator}{self.inside}{self.at}"
        return f"{self.dtype} cannot hold the integers of {of}: {self.exact:,.0f} becomes {self.rounded:,.0f}"

    @property
    def evidence(self) -> list[str]:
        at = f" ({self.effect_place})" if self.effect_place else ""
        effect = f"{self.effect_operator}{at} gets other indices"
        if self.effect_pct is not None:
            effect = f"the result of {self.effect_operator}{at} has an error of {percent(self.effect_pct)}"
        counted = f"{self.num_rounded:,} of {self.num_all:,} are rounded"
        return [f"{counted}; in a float32 step with these alone rounded, {effect}"]
