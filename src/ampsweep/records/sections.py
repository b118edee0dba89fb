"""Sections of a run record that are filled in one by one."""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, Self

from ampsweep.memory_categories import MemoryCategory


@dataclass(kw_only=True)
class RecordSection:
    """A section of a record; a fact that is None is absent, and its key is not written."""

    def __bool__(self) -> bool:
        return bool(self.as_json())

    def __or__(self, other: Self) -> Self:
        """The facts of both; the right section takes precedence."""
        both = replace(self)
        both |= other
        return both

    def __ior__(self, other: Self) -> Self:
        for name, value in other._known().items():
            setattr(self, name, value)
        return self

    def as_json(self) -> dict[str, Any]:
        known: dict[str, Any] = as_json(self._known())
        return known

    def _known(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(kw_only=True)
class BestEvaluation:
    """The best evaluation of a training by `trainer.metric`."""

    metric: str
    step: int
    value: float
    values: dict[str, float] = field(default_factory=dict)  # all of its values by key


@dataclass(frozen=True, kw_only=True)
class KeptWeights:
    """A file with the model's state dict, which a run leaves."""

    file: str  # relative to the run's directory
    step: int
    value: float | None = None  # of `trainer.metric` at that step; None if it was not evaluated there


WhyKept = Literal["output", "size", "fp32_modules", "subclass", "changed", "no_linear"]
"""Why a layer is not in float8: the output layer; a size that is no multiple of 16; kept in float32; a subclass of
`nn.Linear`; hooks, another forward or a computed weight; no `nn.Linear`."""


@dataclass(frozen=True, kw_only=True)
class KeptLayer:
    name: str
    kind: str  # its class
    why: WhyKept


@dataclass(frozen=True, kw_only=True)
class Float8Layer:
    """A layer converted to float8, and its work in the traced step's forward passes."""

    name: str
    in_features: int
    out_features: int
    flops: dict[str, int] = field(default_factory=dict)  # by dtype of the operands; empty if not called
    casts: int = 0  # tensors cast to float8: input and weight of each call


@dataclass(kw_only=True)
class Float8Proof(RecordSection):
    recipe: str | None = None  # torchao's: `tensorwise` or `rowwise`
    emulated: str | None = None  # why values are rounded to float8 and multiplied in float32
    arithmetic: str | None = None  # `rounded` if a converted layer loses bits as float8 does, else `exact`
    converted: list[Float8Layer] | None = None
    casts: dict[str, int] | None = None  # tensors cast to each float8 dtype in the traced step, including backward
    kept: list[KeptLayer] | None = None


@dataclass(kw_only=True)
class ModeProof(RecordSection):
    """Evidence of the mode in which a run computed: arithmetic, flags, dtypes of a traced step."""

    fp32_arithmetic: dict[str, str] | None = None  # `matmul` and `convolution` -> `exact` or `rounded`
    fp32_bits: dict[str, int] | None = None  # the same -> mantissa bits that float32 operands keep: 23, or fewer
    optimizer_fused: bool | None = None
    num_operators: int | None = None
    flops: dict[str, int] | None = None  # FLOPs of matmuls, convolutions and attention by dtype of the operands
    recomputed_flops: dict[str, int] | None = None
    """Part of `flops` that checkpointing or fused attention recomputes; absent if compiled code recomputes."""
    forward_flops: dict[str, int] | None = None  # part of `flops` outside backward, if modules are counted separately
    fp32_module_flops: dict[str, int] | None = None  # part of `forward_flops` in `precision.fp32_modules`
    idle_fp32_modules: list[str] | None = None  # patterns of `precision.fp32_modules` whose modules were not called
    num_repeated_operators: int | None = None  # operators that `torch.utils.checkpoint` called again in backward
    float8: Float8Proof | None = None
    outputs: dict[str, int] | None = None  # new floating-point tensors that operators returned, by dtype
    eval_parameters: str | None = None  # dtype of the parameters in evaluations, if not that of the training
    traced: str | None = None  # `compiled` or `eager`, whatever the other steps did
    flags: dict[str, Any] | None = None  # torch's flags during the traced step
    peak: dict[str, Any] | None = None  # the device's peak FLOPS for utilization, with its source


@dataclass(kw_only=True)
class MemoryUse(RecordSection):
    """Bytes of the traced step; `peak`, `end_of_forward` and `kept` are by category."""

    peak_bytes: int | None = None
    peak: dict[MemoryCategory, int] | None = None  # adds up to `peak_bytes`
    end_of_forward: dict[MemoryCategory, int] | None = None
    kept: dict[MemoryCategory, int] | None = None  # allocated in the step and not freed
    allocator_peak_bytes: int | None = None  # absent if the allocator does not count
    unattributed_bytes: int | None = None  # `allocator_peak_bytes` minus `peak_bytes`
    step: int | None = None  # the traced step, if no allocator knows the peak of all


@dataclass(kw_only=True)
class Contamination(RecordSection):
    """Whether anything else changed the run's speed, with reasons and figures."""

    verdict: str | None = None  # `clean`, `contaminated` or `unknown`
    reasons: list[str] | None = None  # why the verdict is contaminated or unknown
    busy_before: str | None = None  # a sentence on who used the device before the run
    figures: dict[str, float] | None = None  # processor time in cores, seconds, percent

    def _known(self) -> dict[str, Any]:
        """Include a null `busy_before` if there are figures: the device was watched, and idle."""
        known = super()._known()
        return known if self.figures is None else known | {"busy_before": self.busy_before}


@dataclass(kw_only=True)
class RecordedDtypes(RecordSection):
    compute: str | None = None  # of the operands of matmuls and convolutions
    parameters: str | None = None
    gradients: str | None = None  # while micro-batches are added up
    reduction: str | None = None  # while gradients are added up across ranks
    optimizer_state: str | None = None


@dataclass(kw_only=True)
class RankFigures(RecordSection):
    """A rank of a training on several devices, and its own figures."""

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    device: str | None = None
    device_name: str | None = None
    peak_bytes: int | None = None  # at the traced step's peak; `peak` has them by category
    peak: dict[MemoryCategory, int] | None = None
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    process_gib: float | None = None
    step_ms: float | None = None
    data_wait_ms: float | None = None
    communication_ms: float | None = None


Doubt = Literal["custom", "differs", "workspace", "varies"]
"""Why a prediction does not vouch for an operator: not torch's own; uses other memory in this version of torch; a
library chooses its workspace; or, for a batch, sizes vary between batches."""


@dataclass(frozen=True, kw_only=True)
class UnvouchedOperator:
    """An operator that may use other memory than predicted."""

    name: str  # torch's name: `aten.convolution`
    doubt: Doubt
    modules: list[str] = field(default_factory=list)  # modules that called it in forward, by name and class


@dataclass(kw_only=True)
class StepPrediction(RecordSection):
    """Predicted bytes of an eager step, whatever `trainer.compile` says, and the time of a step as it says; `refused`:
    why there are none."""

    target: str | None = None  # the device predicted for
    refused: str | None = None
    peak_bytes: int | None = None
    peak: dict[MemoryCategory, int] | None = None
    end_of_forward: dict[MemoryCategory, int] | None = None
    allocator_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes_by_batch_size: dict[str, int] | None = None
    step_ms: float | None = None  # on a GPU whose data are known
    step_ms_low: float | None = None  # from here to `step_ms_high` lie nine of ten measurements
    step_ms_high: float | None = None
    error_correlation: float | None = None  # of the logarithms of the errors of two modes' `step_ms` there
    least_ms: float | None = None  # the step's bound on the device: its kernels at peak rates, without gaps
    measured_ms: float | None = None  # the run's median; absent if disturbed
    step_error_pct: float | None = None  # `step_ms` minus `measured_ms`, in percent of the latter
    unvouched: list[UnvouchedOperator] | None = None
    measured_bytes: int | None = None  # on CUDA the allocator's peak, on the CPU the traced step's; absent if compiled
    error_pct: float | None = None  # predicted minus measured peak, in percent of the measured peak
    on_cuda: "StepPrediction | None" = None  # the same step on a CUDA GPU, for a run of a sweep that had none


@dataclass(frozen=True, kw_only=True)
class GraphBreak:
    reason: str  # the first line of torch's reason
    place: str | None = None  # `nets.py, line 12`


@dataclass(frozen=True, kw_only=True)
class Recompilation:
    """A function compiled again within a step."""

    step: int  # from 1 within its process
    reason: str  # the failed guard, in torch's words
    place: str | None = None  # the beginning of the function
    in_warmup: bool = False  # True if the compilation is in no figure of time


@dataclass(kw_only=True)
class Compilation(RecordSection):
    """Work of torch.compile in the run's last process, including evaluations; absent if nothing was compiled."""

    num_graphs: int | None = None  # graphs captured, each with its backward
    seconds: float | None = None
    graph_breaks: list[GraphBreak] | None = None  # each once
    recompilations: list[Recompilation] | None = None  # within steps


@dataclass(kw_only=True)
class WandbFacts(RecordSection):
    id: str | None = None
    mode: str | None = None  # `online` or `offline`
    last_step: int | None = None  # the last row that W&B has
    project: str | None = None
    entity: str | None = None
    group: str | None = None
    sweep: str | None = None
    url: str | None = None
    directory: str | None = None  # an offline run's W&B files, relative to the run's directory
    error: str | None = None  # the error that ended tracking
    stopped: bool | None = None  # True if the W&B sweep stopped the run


@dataclass(kw_only=True)
class FigureSources(RecordSection):
    """Where the figures of a run come from that the suite knows from W&B alone: names of W&B's config and metrics."""

    arm: list[str] | None = None
    seed: str | None = None
    steps: str | None = None  # what counts the steps; `_step` is W&B's own count of logged rows
    time: str | None = None  # `_runtime`, the wall time at each row, or the key of a time that the training logged
    memory: str | None = None  # the system metric with the largest sample: the process's or the device's


@dataclass(kw_only=True)
class Attempt(RecordSection):
    """A process that worked on the run."""

    started_at: str | None = None  # ISO 8601, UTC
    host: str | None = None
    pid: int | None = None
    slurm_job: str | None = None  # `12`, or `12_3` for one of an array
    checkpoint: str | None = None  # the checkpoint that it resumed
    saved_in: str | None = None  # the arm of that checkpoint, if of another run
    saved_by: str | None = None  # the id of that run, if its record lies beside the checkpoint
    notes: list[str] | None = None  # differences caused by resuming
    from_step: int | None = None
    warmup_steps: int | None = None  # of this process
    stopped_by: str | None = None


def as_json(value: Any) -> Any:
    """Copy a value with sections and other dataclasses as JSON objects."""
    if isinstance(value, RecordSection):
        return value.as_json()
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value
