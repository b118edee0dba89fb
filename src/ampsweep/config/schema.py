"""The schema of the config with its defaults; Hydra refuses keys that it does not have.

A file in `conf/` sets only the fields that its schema leaves open (`MISSING`) and those in which the option differs
from the schema's default, so that each default is written once. The components' schemas are in `components.py`.
"""

import os
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, Final, Literal, get_args, get_type_hints

from omegaconf import MISSING

from ampsweep.config.components import SCHEMAS
from ampsweep.config.field_rules import (
    ABOVE_ONE,
    BELOW_ONE,
    COMMAND,
    NOT_NEGATIVE,
    NULL,
    PAIRS,
    Schema,
    needs,
    one_of,
    within,
)

DTYPES: Final = ("float32", "bfloat16", "float16")
FP32_MATMULS: Final = ("highest", "high", "medium")
"""Values of `torch.set_float32_matmul_precision`, the most precise first."""


class PrecisionConfig(Schema):
    """A precision mode. Each field can be changed or swept alone."""

    mode: str = MISSING  # name of the mode that these values started from
    parameters: str = field(default="float32", metadata=one_of(*DTYPES))
    """dtype of the parameters, gradients and optimizer state: float32, bfloat16 or float16."""
    autocast: bool = False
    dtype: str = field(default="float32", metadata=one_of(*DTYPES))
    """dtype that autocast computes in; without autocast the same as `parameters`."""
    cache_enabled: bool = field(default=True, metadata=needs("precision.autocast"))
    """Autocast reuses its half-precision copy of a weight within a forward pass."""
    grad_scaler: bool = False
    init_scale: float = field(default=65536.0, metadata=needs("precision.grad_scaler"))
    growth_factor: float = field(default=2.0, metadata=needs("precision.grad_scaler") | within(ABOVE_ONE))
    backoff_factor: float = field(default=0.5, metadata=needs("precision.grad_scaler") | within(BELOW_ONE))
    growth_interval: int = field(default=2000, metadata=needs("precision.grad_scaler"))
    tf32: bool = False  # float32 matmuls and convolutions may run in TF32
    fp32_matmul: str | None = field(
        default=None, metadata=needs("precision.parameters", "float32") | one_of(*FP32_MATMULS)
    )
    """Arithmetic of float32 matmuls alone, by torch's names: highest is float32, high TF32 (or three products of
    bfloat16), medium bfloat16. None: high if `tf32`, else highest."""
    eval: str = field(default="full", metadata=needs("precision.autocast") | one_of("full", "autocast"))
    """`full`: evaluate without autocast; `autocast`: evaluate under the training's autocast."""
    fp32_modules: list[str] = field(default_factory=list, metadata=needs("precision.autocast"))
    """Patterns (fnmatch) of the names of modules that compute in float32 under autocast, submodules included."""


class TrainerConfig(Schema):
    steps: int | None = field(default=MISSING, metadata=needs("trainer.epochs", NULL))
    epochs: int | None = None  # passes over the data, in place of `steps`. None: `steps` counts.
    max_seconds: float | None = None
    """Training stops after the step in which this much time has passed since the first step began."""
    grace_seconds: float = field(default=300.0, metadata=needs("trainer.max_seconds"))
    """A step or an evaluation that exceeds `max_seconds` by more than this is killed, and the run fails; building the
    run may take ten times as much longer."""
    warmup_steps: int = field(default=10, metadata=within(NOT_NEGATIVE))
    """Steps left out of every figure (not of the training); at most half of a shorter run."""
    warmup_seconds: float | None = field(default=None, metadata=within(NOT_NEGATIVE))
    """Steps are also left out of times, power and energy until this much time has passed. None: 2 on an accelerator,
    whose clocks rise under load; 0 on a CPU."""
    grad_accum_steps: int = 1
    accumulate_dtype: str | None = field(default=None, metadata=one_of(*DTYPES))
    """dtype of the gradients in which those of micro-batches are accumulated. None: that of the parameters."""
    max_grad_norm: float | None = None
    """The gradients of each optimizer's parameters are clipped to this global 2-norm. None: not clipped."""
    max_grad_value: float | None = None
    """Single gradients are clamped to at most this magnitude, before the norm is clipped."""
    log_every: int = 10
    eval_every: int | None = None  # None: evaluate at the end only
    metric: str = "val/loss"  # the validation metric that best weights, `patience` and `scheduler=plateau` follow
    goal: str | None = field(default=None, metadata=one_of("minimize", "maximize"))
    """Whether a low or a high `metric` is better. None: known for the suite's own metrics."""
    patience: int | None = field(default=None, metadata=needs("trainer.eval_every"))
    """Evaluations in a row without a better `metric` after which training stops early. None: never."""
    min_delta: float = field(default=0.0, metadata=needs("trainer.patience") | within(NOT_NEGATIVE))
    """The least improvement of `metric` that counts for `patience`."""
    keep_weights: str = field(default="auto", metadata=one_of("auto", "none", "final", "best", "both"))
    """Weights that a completed run leaves: final, of its last step; best, by `metric`; both; or none. auto: in a single
    run final, and best too with `patience`; in a sweep none."""
    checkpoint_every: int | None = None  # None: a checkpoint only if the run is interrupted
    compile: bool = False
    cudnn_benchmark: bool | None = None
    """cuDNN benchmarks its algorithms for each new shape and takes the fastest (CUDA only). None: as torch is set."""
    channels_last: bool = False
    activation_checkpointing: bool = False
    memory_limit_gib: float | None = None
    """Emulates a device with this much memory. On CUDA it limits what the allocator reserves; on the CPU the bytes of
    all live tensors, checked after each operator, which makes steps too slow to time."""


class ParallelConfig(Schema):
    """The processes of a training, one per device, and how they share the work."""

    strategy: str = field(default="single", metadata=one_of("single", "ddp", "fsdp2"))
    """single: one process; ddp: each has the whole model, and gradients are averaged; fsdp2: parameters, gradients and
    optimizer state are sharded."""
    num_processes: int | None = None  # None: one per local accelerator, or as many as torchrun has started
    reduce_dtype: str | None = field(
        default=None, metadata=needs("parallel.strategy", "ddp", "fsdp2") | one_of(*DTYPES)
    )
    """dtype in which gradients are reduced across processes. None: that of the parameters."""
    mixed_precision: str = field(
        default="policy", metadata=needs("parallel.strategy", "fsdp2") | one_of("policy", "autocast")
    )
    """fsdp2 under autocast. policy: parameters are cast as they are gathered (MixedPrecisionPolicy); autocast: they are
    gathered as they are, and autocast casts."""
    blocks: list[str] = field(default_factory=list, metadata=needs("parallel.strategy", "fsdp2"))
    """fsdp2: patterns (fnmatch) of names of modules that are gathered one at a time. Empty: the model's own `blocks` or
    `_no_split_modules` (Hugging Face)."""
    reshard_after_forward: bool = field(default=True, metadata=needs("parallel.strategy", "fsdp2"))
    """fsdp2: free a block's gathered parameters after its forward pass, and gather them again for backward."""
    sync_batchnorm: bool = field(default=False, metadata=needs("parallel.strategy", "ddp"))
    """Batch normalization uses the batches of all processes (CUDA only)."""
    find_unused_parameters: bool = field(default=False, metadata=needs("parallel.strategy", "ddp"))
    """ddp: the losses of ranks may depend on different parameters."""


class TrackingConfig(Schema):
    mode: str = field(default="auto", metadata=one_of("auto", "online", "offline", "disabled"))
    """auto: online if there is an API key, else offline; or online, offline, disabled."""
    project: str = field(default_factory=lambda: os.environ.get("WANDB_PROJECT", "ampsweep"))
    entity: str | None = None
    group: str | None = None  # None: the name of the multirun's directory
    tags: list[str] = field(default_factory=list)
    notes: str | None = None  # text shown with the run in W&B
    alerts: bool = True
    """Send a W&B alert for a run that runs out of memory, diverges, is slowed down, or whose scale collapses."""
    checkpoints: bool = False  # upload the newest checkpoint, or else the kept weights, to W&B as an artifact
    code: bool = False  # upload the Python files of the working directory to W&B as an artifact
    console: bool = False  # keep the output of the run's process in `output.log`, and upload it to W&B as the run's log


SEEDS_FOR_SPEED: Final = 6
"""Seeds beyond `report.max_seeds`, for a speed that those left open, as on a busy machine."""


class ReportConfig(Schema):
    baseline: str = "fp32"  # the arm that the others are compared with
    margin_pct: float = 1.0
    """Loss gap, in percent of the baseline's loss, within which two arms count as having learned the same."""
    metric: str = "val/loss"
    """The metric whose last values decide whether two arms have learned the same: any key that the runs log. Without
    val/loss in any run, another well-known name of a validation loss counts."""
    goal: str | None = field(default=None, metadata=one_of("minimize", "maximize"))
    """Which way `metric` is better. None: by its name, such as loss or accuracy."""
    memory_gib: float | None = None
    """Memory that the recommended arm must fit into: peak of allocated tensor bytes, on the fullest rank. None: the
    memory of the device it ran on."""
    decide: bool = False
    """Add seeds to a multirun, those of open arms first, until parity, memory and speed of every arm are decided or the
    budget is spent."""
    budget_minutes: float = field(default=10.0, metadata=needs("report.decide"))  # no run begins that would exceed it
    run_seconds: float | None = field(default=None, metadata=needs("report.decide"))
    """Time for the steps of a run of the slowest arm; `trainer.steps` is lowered to it. None: it is left as it is."""
    max_seeds: int = field(default=12, metadata=needs("report.decide") | within(PAIRS))
    """Pairs of an arm at which its test of parity ends. A look after each pair is planned for; see `sequential`."""


class MaxBatchConfig(Schema):
    search: bool = False  # search for the largest batch that trains, from `data.batch_size` on, and train with it
    limit: int = field(default=65536, metadata=needs("max_batch.search"))  # the largest batch that is tried


class PredictConfig(Schema):
    """Settings of `ampsweep predict`, and of the predictions within a training."""

    target: str = field(default="auto", metadata=needs(COMMAND, "predict") | one_of("auto", "cpu", "cuda"))
    """Device type whose memory is predicted: cpu or cuda; auto is that of `device`."""
    memory_gib: float | None = field(default=None, metadata=needs(COMMAND, "predict"))
    """Memory that the largest batch must fit into: what torch's allocator may take; on the CPU the tensors' bytes."""
    batch_sizes: list[int] | None = field(default=None, metadata=needs(COMMAND, "predict"))
    """Batch sizes of the table. None: powers of two around `data.batch_size`."""
    capability: str | None = field(default=None, metadata=needs(COMMAND, "predict"))
    """CUDA compute capability of the target. None: that of this machine's GPU, else 8.0."""
    speed: bool = field(default=False, metadata=needs(COMMAND, "predict"))
    """Predict the speed on each of `gpus`, too, and what fits into its memory; implied by `gpus` and `prices`."""
    gpus: list[str] | None = field(default=None, metadata=needs(COMMAND, "predict"))
    """Names of GPUs, such as T4 or A100-80. None: those with a price, else some that are for rent."""
    prices: Any = field(default=None, metadata=needs(COMMAND, "predict"))
    """A mapping from the name of a GPU to the price of an hour of it, in any currency."""
    write: bool = field(default=False, metadata=needs(COMMAND, "predict"))
    """Write a record (`kind: predicted`) for each mode below `output_dir`."""
    with_runs: bool = True
    """Predict the memory of each run: for a warning before one that will not fit, for its record, and for the first
    batch of the search for the largest."""

    @property
    def of_gpus(self) -> bool:
        """True if the speed on named GPUs is predicted."""
        return self.speed or bool(self.gpus or self.prices)


Complaint = Literal["types", "loss", "numerics", "memory", "speed"]
"""A complaint about a training in low precision, the most serious first. `types`: an operator gets dtypes that do not
fit together; `loss`: not finite, or worse than in float32; `numerics`: an operator's error is larger than its dtype
explains; `memory`: it did not shrink; `speed`: the gain is small."""
COMPLAINTS: Final[tuple[Complaint, ...]] = get_args(Complaint)


class DoctorConfig(Schema):
    """Settings of `ampsweep doctor`."""

    complaints: list[str] = field(default_factory=list, metadata=needs(COMMAND, "doctor") | one_of(*COMPLAINTS))
    """The complaints to examine. Empty: all."""
    steps: int = field(default=20, metadata=needs(COMMAND, "doctor"))  # the most steps of each replay
    max_seconds: float = field(default=300.0, metadata=needs(COMMAND, "doctor"))
    """Time after which examinations end with what they have found."""


class NumericsConfig(Schema):
    """Watching the magnitudes of a training's values."""

    watch: bool = False
    """Observe activations, gradients, weights and updates, and note the gradients that cause a skipped step."""
    every: int | None = field(default=None, metadata=needs("numerics.watch"))
    """Steps between two observations. None: so many that observing takes half a percent of the time."""


class Config(Schema):
    """One training. Its `COMPONENTS` are mappings, checked against a schema unless they are a user's own class."""

    name: str = MISSING  # experiment name: the folder of the runs in `output_dir`
    precision: PrecisionConfig = MISSING
    model: Any = MISSING
    data: Any = MISSING
    task: Any = MISSING
    optimizer: Any = MISSING
    scheduler: Any = MISSING
    trainer: TrainerConfig = MISSING
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    tracking: TrackingConfig = MISSING
    report: ReportConfig = MISSING
    predict: PredictConfig = field(default_factory=PredictConfig)
    doctor: DoctorConfig = field(default_factory=DoctorConfig)
    numerics: NumericsConfig = field(default_factory=NumericsConfig)
    max_batch: MaxBatchConfig = field(default_factory=MaxBatchConfig)
    seed: int = 0
    device: str = "auto"  # auto: the accelerator torch reports, else the CPU; or cpu, cuda, cuda:1, mps
    resume: str | None = None
    """auto: the newest unfinished run of this config; or a checkpoint or run directory, also as a pattern that matches
    exactly one (`DIR/fp32-*-s0-*`)."""
    into: str | None = None  # directory of an earlier multirun to complete or extend
    dry_run: bool = False  # list the points, check them, estimate the time, train nothing
    output_dir: str = "outputs"

    @property
    def begins_elsewhere(self) -> bool:
        """True if the run continues from a checkpoint that `resume` names."""
        return self.resume not in (None, "auto")


COMPONENTS: Final = tuple(SCHEMAS)
"""The parts of a Config that are built from a `_target_`; a scheduler without one is a shape by its name."""

FIELDS: Final[dict[str, Field[Any]]] = {
    f"{group}.{of.name}": of
    for group, part in get_type_hints(Config).items()
    for schema in ([part] if is_dataclass(part) else SCHEMAS.get(group, {}).values())
    for of in fields(schema)
}
"""Dotted key -> the field of its schema."""


def component_name(component: dict[str, Any]) -> str:
    """The name of a component: its `name`, else the last part of its `_target_`.

    >>> component_name({"_target_": "mine.nets.Net", "width": 8})
    'Net'
    """
    name = component.get("name")
    if name and name != "custom":
        return str(name)
    return str(component["_target_"]).rpartition(".")[2]
