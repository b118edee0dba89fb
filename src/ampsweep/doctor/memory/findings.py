"""The findings of the complaint `memory`: what keeps the peak from shrinking."""

from dataclasses import dataclass

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.text import num_bytes


@dataclass(frozen=True, kw_only=True)
class TracedAgain(TriedChange):
    what: str = "the peak is"
    bytes_before: int
    bytes_after: int

    @property
    def sentence(self) -> str:
        before, after = num_bytes(self.bytes_before), num_bytes(self.bytes_after)
        return f"traced again with that, {self.what} {after} instead of {before}"


class MemoryFinding(DoctorFinding):
    severity = "warning"
    complaint = "memory"


class WideFinding(MemoryFinding):
    """Base of the causes that keep activations in float32."""

    seen = ("{float32_bytes} of activations are in float32 at a peak of {peak_bytes}",)
    float32_bytes: int
    peak_bytes: int
    function: str
    partner: str  # what the function gets in float32: the name of a tensor, or a constant


class Float32Cast(WideFinding):
    template = "{function} in {all_modules}{at} casts to float32, and what follows stays there"
    remedy = "remove the cast, or cast only what needs it"


class Float32AutocastOff(WideFinding):
    template = "autocast is off in {all_modules}{at}"
    remedy = "leave autocast on there"
    remedy_by_overrides = "keep fewer modules in float32, if the loss allows it"


class Float32Promoted(WideFinding):
    template = "{function} in {all_modules}{at} meets {partner} in float32, and so does all that follows"
    remedy = "cast the result back to the dtype of the activations, or the constant to it"


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
    holder: str  # an attribute, or "something"
    growth_bytes: int
    num_steps: int


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
    template = "{price} is what autocast leaves in float32, and its copies of weights: {state}"
    seen = ("the peak is {peak_bytes}, in float32 {baseline_peak_bytes}",)
    remedy_by_overrides = "halve the state itself, with parameters in half precision (check what that does to the loss)"
    peak_bytes: int
    baseline_peak_bytes: int
    state: list[str]  # each category with its size
