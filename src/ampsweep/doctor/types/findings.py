"""The findings of the complaint `types`: operators that refuse the dtypes of their arguments."""

from dataclasses import dataclass, field
from typing import Final

import torch

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.running_code import Place
from ampsweep.doctor.tensor_origins import OriginKind, TensorOrigin
from ampsweep.observe.calls import Phase
from ampsweep.text import listed, number

_PHASE: Final[dict[str, str]] = {"forward": "the forward pass", "backward": "the backward pass", "update": "the update"}
_HELD: Final[dict[OriginKind, str]] = {
    "parameter": "the parameter {name}",
    "buffer": "the buffer {name}",
    "attribute": "{name}, a tensor that is not a buffer, so that no precision converts it",
    "batch": "{name} of the data",
    "optimizer_state": "{name} in the optimizer's state",
    "unknown": "a tensor that no operator of the training made",
}
"""Tensors that no operator made."""


@dataclass(frozen=True, kw_only=True)
class MadeTensor:
    by: OriginKind
    name: str | None
    operator: str | None
    module: str | None
    place: str | None

    @staticmethod
    def of(origin: TensorOrigin) -> "MadeTensor":
        operator, module, place = (getattr(origin.call, name, None) for name in ("operator", "module", "place"))
        return MadeTensor(by=origin.kind, name=origin.name, operator=operator, module=module, place=place)

    @property
    def text(self) -> str:
        if self.by in _HELD:
            return f"it is {_HELD[self.by].format(name=self.name)}"
        by = {"cast": "the code casts it", "autocast": "autocast casts it"}.get(self.by, f"{self.operator} makes it")
        return f"{by}{self._where}"

    @property
    def dtype_text(self) -> str:
        """A clause for a tensor that has its dtype from this."""
        if self.by in _HELD:
            return f"its dtype is that of {_HELD[self.by].format(name=self.name)}"
        if self.by == "autocast":
            return f"its dtype is autocast's{self._where}"
        made = {"cast": "a cast", "constant": f"what {self.operator} makes"}
        return f"its dtype is that of {made.get(self.by, f'what {self.operator} returns')}{self._where}"

    @property
    def _where(self) -> str:
        inside = f" in {self.module}" if self.module else ""
        return inside + (f" ({self.place})" if self.place else "")


@dataclass(frozen=True, kw_only=True)
class Operand:
    argument: str  # its name in the operator's schema, or its place
    dtype: str
    made: MadeTensor
    dtype_from: MadeTensor | None  # the tensor that it inherited its dtype from; None: it was made with it
    place: Place = field(repr=False)
    torch_dtype: torch.dtype = field(repr=False)

    @property
    def sentence(self) -> str:
        made = f"{self.argument} is {self.dtype}: {self.made.text}"
        return made if self.dtype_from is None else f"{made}; {self.dtype_from.dtype_text}"


@dataclass(frozen=True, kw_only=True)
class TriedCasts(TriedChange):
    step: int | None = None
    loss: float | None = None
    baseline_loss: float | None = None

    @property
    def sentence(self) -> str:
        runs = "with that the training and an evaluation run without error"
        if self.loss is None or self.baseline_loss is None:
            return runs
        losses = f"{number(self.loss, 4)}, in float32 {number(self.baseline_loss, 4)}"
        return f"{runs}; the loss of step {self.step} is {losses}"


class TypesFinding(DoctorFinding):
    complaint = "types"
    error: str
    stage: str  # `building`, `training` or `evaluation`
    step: int
    runs_with: list[str]  # overrides with which it runs unchanged

    @property
    def call(self) -> str:
        named = [name for name in (self.operator, *self.modules[:1]) if name]
        return (" in ".join(named) or "the code") + self.at


class WrongDtypes(TypesFinding):
    function: str
    phase: Phase
    operands: list[Operand]  # an operand that is cast, and an operand that it conflicts with
    cast: str  # the arguments that are cast: `query and key`
    cast_to: str
    others: list[str] = field(default_factory=list)  # places of the calls that stop it next, which the change casts too
    number: float | None = None  # a number among the arguments that the dtype cannot hold

    @property
    def evidence(self) -> list[str]:
        in_training = f"{_PHASE[self.phase]} of step {self.step}"
        step = in_training if self.stage == "training" else "the evaluation after a step"
        sentences = [f"{step} stops with {self.error}", *(operand.sentence for operand in self.operands)]
        if self.others:
            sentences.append(f"with that it stops again, and the change has {listed(self.others)}, too")
        if self.runs_with:
            sentences.append(f"without a change of code it runs with {' and '.join(self.runs_with)}")
        return sentences

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
        first, second = (f"{operand.argument} in {operand.dtype}" for operand in self.operands)
        return f"{self.call} gets {first} and {second}, and does not take them together"


class NoSuchDtype(WrongDtypes):
    remedy = "let it compute in {cast_to}: cast {cast}"

    @classmethod
    def kind(cls) -> str:
        return "not_implemented"

    @property
    def sentence(self) -> str:
        return f"{self.call} takes no {self.operands[0].dtype} on this device"


class NumberTooLarge(WrongDtypes):
    remedy = "use the limit of the tensor's own dtype, which has the same effect in a softmax"

    @property
    def sentence(self) -> str:
        return f"{self.call} gets the number {self.number:g}, which {self.operands[0].dtype} cannot hold"


class StopsWithError(TypesFinding):
    remedy_by_overrides = "train in another precision, in which it runs unchanged"
    dtypes: list[str] = field(default_factory=list)  # the dtypes of the failing call's operands

    @property
    def sentence(self) -> str:
        where = f" in {self.call}" if self.operator or self.modules or self.place else ""
        return f"the {self.stage} stops{where} with an error that float32 does not raise: {self.error}"

    @property
    def evidence(self) -> list[str]:
        sentences = [f"it stops in step {self.step}"] if self.stage == "training" else []
        if self.operator is not None:
            sentences.append("no cast of the failing call's operands fixes it: more than its dtypes is wrong")
        return sentences


class RefusedLoss(TypesFinding):
    """A call that raises an error under autocast whatever dtypes it gets, and none without autocast."""

    template = "{call} refuses autocast"
    seen = ("step {step} ends with: {error}",)
    remedy = "compute the loss from logits: from probabilities it is not safe in half precision"
