"""The parts of a run record that are filled in one by one."""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, Self

from ampsweep.memory_categories import MemoryCategory


@dataclass(kw_only=True)
class Part:
    """A part of a record. A fact that is None is absent, and its key is not written."""

    def __bool__(self) -> bool:
        return bool(self.as_json())

    def __or__(self, other: Self) -> Self:
        """The facts of both parts; those of the right one take precedence."""
        both = replace(self)
        both |= other
        return both

    def __ior__(self, other: Self) -> Self:
        """Take over the facts of the other part, in place."""
        for name, value in other._known().items():
            setattr(self, name, value)
        return self

    def as_json(self) -> dict[str, Any]:
        """The part as the JSON object on disk."""
        known: dict[str, Any] = as_json(self._known())
        return known

    def _known(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


WhyKept = Literal["output", "size", "fp32_modules", "subclass", "changed", "no_linear"]
"""A layer is not converted to float8: the output layer; a size is no multiple of 16; kept in float32; a subclass of
`nn.Linear`; changed by hooks, another forward or a computed weight; no `nn.Linear`."""


@dataclass(frozen=True, kw_only=True)
class KeptLayer:
    """A layer with weights to multiply by that was not converted to float8."""

    name: str
    kind: str
    """Its class."""
    why: WhyKept


@dataclass(frozen=True, kw_only=True)
class Float8Layer:
    """A layer that was converted to float8, and its work in the forward passes of the traced step."""

    name: str
    in_features: int
    out_features: int
    flops: dict[str, int] = field(default_factory=dict)
    """Floating-point operations by dtype of the operands; none: it was not called."""
    casts: int = 0
    """Number of tensors cast to float8: the input and the weight of each call."""


@dataclass(kw_only=True)
class Float8Proof(Part):
    """Evidence on the layers that multiply in float8."""

    recipe: str | None = None
    """torchao's: `tensorwise` or `rowwise`."""
    emulated: str | None = None
    """The reason why values are rounded to float8 and multiplied in float32."""
    arithmetic: str | None = None
    """`rounded` if a converted layer loses the bits that float8 does not have, else `exact`."""
    converted: list[Float8Layer] | None = None
    casts: dict[str, int] | None = None
    """Number of tensors cast to each float8 dtype in the traced step, backward included."""
    kept: list[KeptLayer] | None = None


@dataclass(kw_only=True)
class ModeProof(Part):
    """Evidence that the run computed in its mode: its arithmetic, its flags, and the dtypes of a traced step."""

    fp32_arithmetic: dict[str, str] | None = None
    """`matmul` and `convolution` -> `exact` or `rounded`."""
    fp32_bits: dict[str, int] | None = None
    """The same -> bits behind the binary point that float32 numbers keep: 23, or fewer where it rounds."""
    optimizer_fused: bool | None = None
    num_operators: int | None = None
    flops: dict[str, int] | None = None
    """Floating-point operations of matmuls, convolutions and attention, by dtype of the operands."""
    recomputed_flops: dict[str, int] | None = None
    """The part of `flops` computed again: by activation checkpointing, and by backward of fused attention; absent where
    compiled code recomputes, as it is unknown."""
    forward_flops: dict[str, int] | None = None
    """The part of `flops` done outside backward; only where parts of the model are counted apart."""
    fp32_module_flops: dict[str, int] | None = None
    """The part of `forward_flops` done in the modules of `precision.fp32_modules`."""
    idle_fp32_modules: list[str] | None = None
    """Patterns of `precision.fp32_modules` none of whose modules was called."""
    num_repeated_operators: int | None = None
    """Operators that `torch.utils.checkpoint` called again in backward."""
    float8: Float8Proof | None = None
    outputs: dict[str, int] | None = None
    """Number of new floating-point tensors that operators returned, by dtype."""
    traced: str | None = None
    """`compiled`: as torch.compile has made the step; `eager`: operator by operator, whatever the other steps did."""
    flags: dict[str, Any] | None = None
    """The flags of torch in effect while the step was traced."""
    peak: dict[str, Any] | None = None
    """The peak of the device that utilization refers to, with its source."""


@dataclass(kw_only=True)
class MemoryUse(Part):
    """Bytes of the traced step; absent before that step. `peak`, `end_of_forward` and `kept` are by category."""

    peak_bytes: int | None = None
    peak: dict[MemoryCategory, int] | None = None
    """Bytes at the moment with the most; they add up to `peak_bytes`."""
    end_of_forward: dict[MemoryCategory, int] | None = None
    kept: dict[MemoryCategory, int] | None = None
    """Bytes that the step allocated and did not free."""
    allocator_peak_bytes: int | None = None
    """The allocator's own peak; absent if the device's allocator does not count."""
    unattributed_bytes: int | None = None
    """The excess of `allocator_peak_bytes` over `peak_bytes`."""
    step: int | None = None
    """The traced step's number, where no allocator tells the peak of all."""


@dataclass(kw_only=True)
class Contamination(Part):
    """A verdict on whether anything else changed the run's speed, with its reasons and figures."""

    verdict: str | None = None
    """`clean`, `contaminated` or `unknown`."""
    reasons: list[str] | None = None
    """Sentences on why the verdict is contaminated or unknown."""
    busy_before: str | None = None
    """A sentence on who used the device before the run did."""
    figures: dict[str, float] | None = None
    """The measured figures: processor time in cores, seconds, percent."""

    def _known(self) -> dict[str, Any]:
        """Include a null `busy_before` if there are figures: the device was watched, and idle."""
        known = super()._known()
        if self.figures is None:
            return known
        return {name: value for name, value in vars(self).items() if name in known or name == "busy_before"}


@dataclass(kw_only=True)
class RecordedDtypes(Part):
    """The five dtypes that make the precision of the training, by their names in torch."""

    compute: str | None = None
    """dtype of the operands of matmuls and convolutions."""
    parameters: str | None = None
    gradients: str | None = None
    """dtype of gradients while micro-batches are added up."""
    reduction: str | None = None
    """dtype of gradients while they are added up across ranks."""
    optimizer_state: str | None = None


@dataclass(kw_only=True)
class RankFigures(Part):
    """One rank of a training on several devices, and its own figures."""

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    device: str | None = None
    device_name: str | None = None
    peak_bytes: int | None = None
    """Bytes of the traced step at the moment with the most; `peak` has them by category."""
    peak: dict[MemoryCategory, int] | None = None
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    process_gib: float | None = None
    step_ms: float | None = None
    data_wait_ms: float | None = None
    communication_ms: float | None = None


Doubt = Literal["custom", "differs", "workspace", "varies"]
"""A prediction does not vouch for an operator: not torch's own; known to take other memory in this version of torch; a
library decides what workspace it takes; or, for a batch, others have other sizes."""


@dataclass(frozen=True, kw_only=True)
class UnvouchedOperator:
    """An operator of a step whose memory may be another than predicted."""

    name: str
    """As torch writes it: `aten.convolution`."""
    doubt: Doubt
    modules: list[str] = field(default_factory=list)
    """The modules that called it in the forward pass, by name and class."""


@dataclass(kw_only=True)
class StepPrediction(Part):
    """The predicted bytes of a step, run eagerly whatever `trainer.compile` says.

    `refused` holds the reason if nothing could be predicted.
    """

    target: str | None = None
    """The device that the prediction is for."""
    refused: str | None = None
    peak_bytes: int | None = None
    peak: dict[MemoryCategory, int] | None = None
    """Bytes of the peak by category."""
    end_of_forward: dict[MemoryCategory, int] | None = None
    allocator_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes_by_batch_size: dict[str, int] | None = None
    unvouched: list[UnvouchedOperator] | None = None
    measured_bytes: int | None = None
    """The measured peak: on CUDA the allocator's, on the CPU that of the traced step; absent of a compiled run."""
    error_pct: float | None = None
    """The predicted peak minus the measured one, in percent of the measured one."""


@dataclass(kw_only=True)
class WandbFacts(Part):
    """The run's place on W&B, and the course of its tracking."""

    id: str | None = None
    mode: str | None = None
    """`online` or `offline`."""
    last_step: int | None = None
    """Step of the last row that W&B has."""
    project: str | None = None
    entity: str | None = None
    group: str | None = None
    sweep: str | None = None
    url: str | None = None
    directory: str | None = None
    """Directory of an offline run's W&B files, relative to the run's directory."""
    error: str | None = None
    """The error that ended tracking."""
    stopped: bool | None = None
    """True if the W&B sweep has stopped the run."""


@dataclass(kw_only=True)
class Attempt(Part):
    """One process that worked on the run."""

    started_at: str | None = None
    """ISO 8601, UTC."""
    host: str | None = None
    pid: int | None = None
    slurm_job: str | None = None
    """`12`, or `12_3` for one of an array."""
    checkpoint: str | None = None
    """Path of the checkpoint that this process resumed from."""
    saved_in: str | None = None
    """The arm of that checkpoint, if another run has saved it."""
    saved_by: str | None = None
    """The id of that run, if its record lies beside the checkpoint."""
    notes: list[str] | None = None
    """Sentences on the differences that resuming made."""
    from_step: int | None = None
    warmup_steps: int | None = None
    """Steps of this process that were warm-up."""
    stopped_by: str | None = None


def as_json(value: Any) -> Any:
    """A copy of a value of a record as JSON has it: parts and other dataclasses become objects."""
    if isinstance(value, Part):
        return value.as_json()
    if is_dataclass(value):
        return {one.name: as_json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value
