"""The findings of the complaint `loss`: it is inf or NaN, or worse than in float32."""

from dataclasses import dataclass, field
from typing import Final

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.loss.fault import FaultSigns
from ampsweep.text import number

FROM_LOGITS: Final = "torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)"
"""The loss that autocast takes and that probabilities of 0 and 1 do not spoil, as a line of Python."""


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Parts of the precision that were switched by themselves, by whether that mends the fault; None: not tried."""

    autocast_off_mends: bool | None = None
    scaler_off_mends: bool | None = None
    scaler_on_mends: bool | None = None

    @property
    def told(self) -> list[str]:
        """A clause on all of them."""
        tried = {
            "switching autocast off": self.autocast_off_mends,
            "switching the scaler off": self.scaler_off_mends,
            "adding a scaler": self.scaler_on_mends,
        }
        helps = {True: "mends it", False: "does not mend it"}
        told = [f"{what} {helps[mends]}" for what, mends in tried.items() if mends is not None]
        return ["; ".join(told)] if told else []


@dataclass(frozen=True, kw_only=True)
class TriedSteps(TriedChange):
    """The steps of the training with a change: their number, the last loss, and what the change costs."""

    num_steps: int
    loss: float | None = None
    baseline_loss: float | None = None
    time_ratio: float | None = None
    """Time of a step with the change over that without."""
    memory_ratio: float | None = None
    """The same of its peak memory."""

    @property
    def sentence(self) -> str:
        tried = f"tried for {self.num_steps} steps"
        if not self.mends:
            return f"{tried}: it helps, but the loss is still worse than in float32"
        prices = [(self.time_ratio, "the step's time"), (self.memory_ratio, "its peak memory")]
        told = [f"{number(ratio)} times {what}" for ratio, what in prices if ratio is not None]
        return f"{tried}: the fault is gone" + (f", at {' and '.join(told)}" if told else "")


class LossFinding(DoctorFinding):
    """A loss that is not finite, or worse than in float32."""

    complaint = "loss"
    signs: FaultSigns
    switches: Switches = field(default_factory=Switches)

    @property
    def evidence(self) -> list[str]:
        return [self.signs.sentence, *self.switches.told, *super().evidence]

    @property
    def inside(self) -> str:
        return super().inside or " outside the model"


class NotPrecision(LossFinding):
    template = "the loss goes wrong in float32, too: precision is not the cause"
    remedy = "look at the learning rate, the data and the loss first"


class Unsearched(LossFinding):
    template = "the loss goes wrong in {dtype} and not in float32; time was up before the cause was known"
    remedy = "give the doctor more time (doctor.max_seconds)"


class Unexplained(LossFinding):
    template = "the loss goes wrong in {dtype} and not in float32, and no change that was tried mends it"

    @property
    def advice(self) -> str | None:
        return "train in another mode" if self.change.overrides else None


class WholeModel(Unexplained):
    template = "no few modules in float32 mend the loss in {dtype}"


class ScalerFault(LossFinding):
    """A fault that another scale mends."""

    init_scale: float | None
    """None: there is no scaler."""


class GradientsVanish(ScalerFault):
    template = "gradients are too small for float16, and no scaler makes them larger"
    remedy = "train with a scaler"


class ScaleTooSmall(ScalerFault):
    template = "the scale of {init_scale} is too small: gradients vanish in float16"
    remedy = "begin with a larger scale"


class ScaleTooLarge(ScalerFault):
    template = "the scale begins at {init_scale}, and steps are skipped until it is smaller"
    remedy = "begin with a smaller scale"


class OptimizerEps(LossFinding):
    template = "the optimizer's eps={eps} is zero in float16, and it divides by zero"
    seen = ("the squares of small gradients are zero in float16, too",)
    remedy = "use an eps that float16 holds, or float32 parameters (amp_fp16)"
    eps: float


class UpdatesLost(LossFinding):
    template = (
        "{unchanged_pct} of the weights with a gradient stay as they are: updates are smaller than half the distance "
        "to the next number in {dtype}"
    )
    remedy = "keep the parameters in float32"
    unchanged_pct: float
