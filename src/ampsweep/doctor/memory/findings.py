"""The findings of the complaint `memory`: what keeps the peak from shrinking."""

from dataclasses import dataclass

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.tensor_origins import OriginKind
from ampsweep.text import num_bytes


@dataclass(frozen=True, kw_only=True)
class TracedAgain(TriedChange):
    peak_bytes_before: int
    peak_bytes_after: int

    @property
    def sentence(self) -> str:
        before, after = num_bytes(self.peak_bytes_before), num_bytes(self.peak_bytes_after)
        return f"traced again with that, the peak is {after} instead of {before}"


@dataclass(frozen=True, kw_only=True)
class GrowthAgain(TriedChange):
    growth_bytes: int  # bytes that a step leaves behind after the change

    @property
    def sentence(self) -> str:
        return f"with that a step leaves {num_bytes(self.growth_bytes)} behind"


class MemoryFinding(DoctorFinding):
    severity = "warning"
    complaint = "memory"


class WideFinding(MemoryFinding):
    """Base of the causes that keep activations in float32."""

    float32_bytes: int
    peak_bytes: int
    function: str
    partner_by: OriginKind | None  # the origin of the operand that already has the dtype
    partner_name: str | None

    @property
    def where(self) -> str:
        return f"{self.function} in {self.all_modules}{self.at}"

    @property
    def wide(self) -> str:
        return self.filled("{float32_bytes} of activations in float32 at a peak of {peak_bytes}")


class Float32Cast(WideFinding):
    template = "{where} casts to float32, and what follows stays there: {wide}"
    remedy = "remove the cast, or cast only what needs it"


class Float32AutocastOff(WideFinding):
    remedy = "leave autocast on there"
    remedy_by_overrides = "keep fewer modules in float32, if the loss allows it"

    @property
    def sentence(self) -> str:
        if self.change.overrides:
            return f"precision.fp32_modules keeps {self.all_modules} in float32: {self.wide}"
        return f"autocast is switched off in {self.all_modules}{self.at}: {self.wide}"


class Float32Promoted(WideFinding):
    template = "{where} meets {partner} in float32, and so does all that follows: {wide}"
    remedy = "cast the result back to the dtype of the activations, or the constant to it"

    @property
    def partner(self) -> str:
        partner = "a constant" if self.partner_by in ("constant", "operator") else f"the {self.partner_by}"
        return f"{partner} {self.partner_name}" if self.partner_name else partner


class CastAgain(MemoryFinding):
    template = (
        "autocast casts the same tensor again at each use in {all_modules}: {num_copies} copies of {num_tensors} "
        "tensors are alive at the peak"
    )
    remedy = "cast it once, and use the copy"
    remedy_by_overrides = "let autocast cache its copies"
    seen = ("all but the first copy of each take {extra_bytes}",)
    extra_bytes: int
    num_copies: int
    num_tensors: int


class GrowsFromStepToStep(MemoryFinding):
    template = "memory grows by {growth_bytes} a step: {holder} keeps tensors of every step"
    seen = ("after {num_steps} steps it is {price}", "the step before made them{inside}{at}")
    remedy = "keep numbers (.item()); a tensor keeps its storage, and with a graph all that backward would need"
    attribute: str | None  # None: the holder was not found
    growth_bytes: int
    num_steps: int

    @property
    def holder(self) -> str:
        return self.attribute or "something"


class LargeLoss(MemoryFinding):
    template = "the loss on {shape} values takes {loss_bytes} of a peak of {peak_bytes}"
    remedy = "take smaller micro-batches and accumulate their gradients: the effective batch is the same"
    loss_bytes: int
    peak_bytes: int
    shape: str
    tensors: list[str]  # the largest: what made them, and their size

    @property
    def evidence(self) -> list[str]:
        return self.tensors


class MostlyState(MemoryFinding):
    template = (
        "{price} is what autocast leaves in float32, and its copies of weights: parameters {parameters_bytes}, "
        "gradients {gradients_bytes}, optimizer state {optimizer_state_bytes}, copies {autocast_weights_bytes}"
    )
    seen = ("the peak is {peak_bytes}, in float32 {baseline_peak_bytes}",)
    remedy_by_overrides = "halve the state itself, with parameters in half precision (check what that does to the loss)"
    peak_bytes: int
    baseline_peak_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    autocast_weights_bytes: int
