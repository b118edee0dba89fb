"""The findings of the complaint `types`: operators that do not take the dtypes which they get."""

from dataclasses import dataclass, field
from typing import Final

import torch

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.source_edit import Place
from ampsweep.doctor.tensor_origins import OriginKind, TensorOrigin
from ampsweep.observe.calls import Phase
from ampsweep.text import number

_PHASES: Final[dict[Phase, str]] = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "update": "the update",
}
_HELD: Final[dict[OriginKind, str]] = {
    "parameter": "the parameter {name}",
    "buffer": "the buffer {name}",
    "attribute": "{name}, a tensor that is no buffer, so that no precision converts it",
    "batch": "{name} of the data",
    "optimizer_state": "{name} in the optimizer's state",
    "unknown": "a tensor that no operator of the training has made",
}
"""Tensors that no operator has made, as sentences name them."""


@dataclass(frozen=True, kw_only=True)
class MadeTensor:
    """The making of a tensor."""

    by: OriginKind
    name: str | None
    operator: str | None
    module: str | None
    place: str | None

    @staticmethod
    def of(origin: TensorOrigin) -> "MadeTensor":
        call = origin.call
        return MadeTensor(
            by=origin.kind,
            name=origin.name,
            operator=None if call is None else call.operator,
            module=None if call is None else call.module,
            place=None if call is None else call.place,
        )

    @property
    def told(self) -> str:
        """A clause on who made it."""
        if self.by in _HELD:
            return f"it is {_HELD[self.by].format(name=self.name)}"
        by = {"cast": "the code casts it", "autocast": "autocast casts it"}.get(self.by, f"{self.operator} makes it")
        return f"{by}{self._where}"

    @property
    def told_of_dtype(self) -> str:
        """A clause on what it gave its dtype to."""
        if self.by in _HELD:
            return f"its dtype is that of {_HELD[self.by].format(name=self.name)}"
        if self.by == "autocast":
            return f"its dtype is autocast's{self._where}"
        made = {"cast": "a cast", "constant": f"what {self.operator} makes"}
        made_by = made.get(self.by, f"what {self.operator} returns")
        return f"its dtype is that of {made_by}{self._where}"

    @property
    def _where(self) -> str:
        inside = f" in {self.module}" if self.module else ""
        return inside + (f" ({self.place})" if self.place else "")


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A floating-point tensor among the arguments of a call that failed."""

    argument: str
    """Its name in the operator's schema, or its place."""
    dtype: str
    made: MadeTensor
    dtype_from: MadeTensor | None
    """The tensor that it has its dtype from; None: it was made with it."""
    place: Place = field(repr=False)
    torch_dtype: torch.dtype = field(repr=False)
    source: str | None = field(repr=False)
    """Its expression in the code, where that is a name."""

    @property
    def sentence(self) -> str:
        """A clause on its dtype and where that comes from."""
        told = f"{self.argument} is {self.dtype}: {self.made.told}"
        return told if self.dtype_from is None else f"{told}; {self.dtype_from.told_of_dtype}"


@dataclass(frozen=True, kw_only=True)
class TriedCasts(TriedChange):
    """The end of the training with all casts applied."""

    next_error: str | None = None
    step: int | None = None
    loss: float | None = None
    baseline_loss: float | None = None

    @property
    def sentence(self) -> str:
        if not self.mends:
            return f"with that the training goes on, to the next error: {self.next_error}"
        told = "with that the training and an evaluation go through"
        if self.loss is None or self.baseline_loss is None:
            return told
        losses = f"{number(self.loss, 4)}, in float32 {number(self.baseline_loss, 4)}"
        return f"{told}; the loss of step {self.step} is {losses}"


class TypesFinding(DoctorFinding):
    """A training that stops with an error that it does not have in float32."""

    complaint = "types"
    error: str
    stage: str
    """`building`, `training` or `evaluation`."""
    step: int
    runs_with: list[str]
    """Overrides with which it runs as it is."""

    @property
    def call(self) -> str:
        """The call that stops it, with its place."""
        named = [one for one in (self.operator, *self.modules[:1]) if one]
        return (" in ".join(named) or "the code") + self.at


class WrongDtypes(TypesFinding):
    """A call that other dtypes mend: a base of classes."""

    function: str
    phase: Phase
    num_modules: int
    operands: list[Operand]
    """One that is cast, and one that it does not go together with."""
    cast: str
    """The arguments that are cast: `query and key`."""
    cast_to: str
    number: float | None = None
    """A number among the arguments that the dtype cannot hold."""

    @property
    def evidence(self) -> list[str]:
        in_training = f"{_PHASES[self.phase]} of step {self.step}"
        step = in_training if self.stage == "training" else "the evaluation after a step"
        told = [f"{step} stops with {self.error}", *(one.sentence for one in self.operands)]
        if self.num_modules > 1:
            told.append(f"the same line does so in {self.num_modules} modules")
        if self.runs_with:
            told.append(f"without a change of code it runs with {' and '.join(self.runs_with)}")
        return told

    @property
    def advice(self) -> str | None:
        overrides = self.change.overrides
        if not overrides:
            return super().advice
        is_mode = overrides[0].startswith("precision=")
        return "let autocast cast, with parameters in float32" if is_mode else "keep the module in float32"


class MixedDtypes(WrongDtypes):
    remedy = "cast {cast} to {cast_to}"

    @property
    def sentence(self) -> str:
        first, second = (f"{one.argument} in {one.dtype}" for one in self.operands)
        return f"{self.call} gets {first} and {second}, which it does not take together"


class NoSuchDtype(WrongDtypes):
    remedy = "let it compute in {cast_to}: cast {cast}"

    @classmethod
    def kind(cls) -> str:
        return "not_implemented"

    @property
    def sentence(self) -> str:
        return f"{self.call} takes no {self.operands[0].dtype} on this device"


class NumberTooLarge(WrongDtypes):
    remedy = "give it the limit of the tensor's own dtype, which means the same to a softmax"

    @property
    def sentence(self) -> str:
        return f"{self.call} is given {self.number:g}, which {self.operands[0].dtype} cannot hold"


class StopsWithError(TypesFinding):
    """An error that no cast mends."""

    dtypes: list[str] = field(default_factory=list)
    """Those that the failing call gets."""

    @property
    def sentence(self) -> str:
        where = f" in {self.call}" if self.operator or self.modules or self.place else ""
        return f"the {self.stage} stops{where} with an error that float32 does not raise: {self.error}"

    @property
    def evidence(self) -> list[str]:
        told = [f"it stops in step {self.step}"] if self.stage == "training" else []
        if self.operator is not None:
            told.append("no cast of what the failing call gets lets it go on: it is more than its dtypes that is wrong")
        return told

    @property
    def advice(self) -> str | None:
        return "train in another precision, in which it runs as it is" if self.change.overrides else None


class RefusedLoss(TypesFinding):
    """A call that raises an error under autocast whatever dtypes it gets, and none without autocast."""

    template = "{call} refuses autocast"
    seen = ("step {step} ends with: {error}",)
    remedy = "compute the loss from logits: that of probabilities is not safe in half precision"
