"""The finding of the complaint `types`: a call that stops a training, and where its operands' dtypes come from."""

from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.tensor_origins import OriginKind, TensorOrigin
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Phase
from ampsweep.text import number

Stage = Literal[Phase, "building", "training", "evaluation"]
_STOPPED: Final[dict[Stage, str]] = {
    "forward": "the forward pass of step {step}",
    "backward": "the backward pass of step {step}",
    "update": "the update of step {step}",
    "building": "the building of the training",
    "training": "step {step}",
    "evaluation": "the evaluation after step {step}",
}
_MADE: Final[dict[OriginKind, str]] = {
    "parameter": "the parameter {name}",
    "buffer": "the buffer {name}",
    "attribute": "{name}, a tensor that is not a buffer, so that no precision converts it",
    "batch": "{name} of the data",
    "optimizer_state": "{name} in the optimizer's state",
    "unknown": "a tensor that no operator of the training made",
    "autocast": "autocast",
    "cast": "a cast",
}


@dataclass(frozen=True, kw_only=True)
class Operand:
    argument: str  # its name in the operator's schema, or its place
    dtype: str
    made_by: OriginKind  # what made the tensor that it has its dtype from, with that tensor's name or its call:
    name: str | None
    operator: str | None
    module: str | None
    place: str | None

    @staticmethod
    def of(argument: str, origin: TensorOrigin) -> "Operand":
        call = {name: getattr(origin.call, name, None) for name in ("operator", "module", "place")}
        dtype = dtype_name(origin.dtype)
        return Operand(argument=argument, dtype=dtype, made_by=origin.kind, name=origin.name, **call)

    @property
    def sentence(self) -> str:
        made = _MADE.get(self.made_by, "{operator}").format(name=self.name, operator=self.operator)
        inside, at = f" in {self.module}" if self.module else "", f" ({self.place})" if self.place else ""
        return f"{self.argument} is {self.dtype}, from {made}{inside}{at}"


@dataclass(frozen=True, kw_only=True)
class TriedCasts(TriedChange):
    step: int
    loss: float
    baseline_loss: float | None

    @property
    def sentence(self) -> str:
        runs = "with that the training and an evaluation run without error"
        if self.baseline_loss is None:
            return runs
        losses = f"{number(self.loss, 4)}, in float32 {number(self.baseline_loss, 4)}"
        return f"{runs}; the loss of step {self.step} is {losses}"


class StopsWithError(DoctorFinding):
    """A call that raises an error, and raises none in float32."""

    complaint = "types"
    seen = ("it raises {error}",)
    remedy_by_overrides = "run the code as it is, with other dtypes"
    error: str
    stage: Stage  # what it stops; a phase for a call of a training's step
    step: int
    operands: list[Operand]  # one for each of their dtypes

    @property
    def sentence(self) -> str:
        named = [name for name in (self.operator, *self.modules[:1]) if name]
        call = (" in ".join(named) or "the code") + self.at
        gets = " and ".join(f"{operand.argument} in {operand.dtype}" for operand in self.operands)
        given = f" gets {gets}, and" if gets else ""
        return f"{call}{given} stops {_STOPPED[self.stage].format(step=self.step)}"

    @property
    def evidence(self) -> list[str]:
        return [*super().evidence, *(operand.sentence for operand in self.operands)]
