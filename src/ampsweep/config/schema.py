"""Dataclass schemas of every config group, with the defaults; Hydra refuses keys that they do not have.

A file in `conf/` sets only the fields that its schema leaves open (`MISSING`) and those in which the option differs
from the schema's default, so that no default stands in two places.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal, NamedTuple, get_args, get_type_hints

from omegaconf import MISSING

COUNTS_WITH: Final = "counts_with"
"""Metadata of a field: the key without which it has no effect, and the values that key must have (`NULL` for null): if
there are none, any but null and false."""
NULL: Final = "null"
COMMAND: Final = "ampsweep"
"""Stands in the place of that key for the command, a training or another one."""
ALLOWED: Final = "allowed"
"""Metadata of a field: the only values that it, or an item of its list, may have besides null."""
RANGE: Final = "range"
"""Metadata of a field: the `Range` of its numbers, by default `POSITIVE`."""
DTYPES: Final = ("float32", "bfloat16", "float16")
FP32_MATMULS: Final = ("highest", "high", "medium")
"""Ways to compute float32 matmuls by torch's names (`torch.set_float32_matmul_precision`), the most precise first."""


def _with(key: str, *values: str) -> dict[str, Any]:
    return {COUNTS_WITH: (key, values)}


def _one_of(*values: str) -> dict[str, Any]:
    return {ALLOWED: values}


class Range(NamedTuple):
    """The numbers that a field may have, and the end of the sentence about others."""

    holds: Callable[[float], bool]
    sentence: str


POSITIVE: Final = Range(lambda value: value > 0, "must be greater than 0")
NOT_NEGATIVE: Final = Range(lambda value: value >= 0, "must not be negative")
_ABOVE_ONE: Final = Range(lambda value: value > 1, "must be greater than 1")
_BELOW_ONE: Final = Range(lambda value: 0 < value < 1, "must lie between 0 and 1")
_UP_TO_ONE: Final = Range(lambda value: 0 <= value <= 1, "must lie from 0 to 1")
_OPEN_SHARE: Final = Range(lambda value: 0 < value < 1, "must be greater than 0 and less than 1")
_SHARE: Final = Range(lambda value: 0 <= value < 1, "must be at least 0 and less than 1")


def _in(numbers: Range) -> dict[str, Any]:
    return {RANGE: numbers}


def counts_with(value: Any, values: Collection[str]) -> bool:
    """Tell whether a key that another one counts with has one of the values or, without values, any at all."""
    return (NULL if value is None else value) in values if values else value not in (None, False)


@dataclass(kw_only=True)
class PrecisionConfig:
    """One precision mode, every part of it a field that can be changed or swept alone."""

    mode: str = MISSING
    """Name of the mode these values started from."""
    parameters: str = field(default="float32", metadata=_one_of(*DTYPES))
    """dtype of the parameters, gradients and optimizer state: float32, bfloat16 or float16."""
    autocast: bool = False
    dtype: str = field(default="float32", metadata=_one_of(*DTYPES))
    """dtype that autocast computes in; without autocast the same as `parameters`."""
    cache_enabled: bool = field(default=True, metadata=_with("precision.autocast"))
    """Autocast reuses its half-precision copy of a weight within a forward pass."""
    grad_scaler: bool = False
    init_scale: float = field(default=65536.0, metadata=_with("precision.grad_scaler"))
    growth_factor: float = field(default=2.0, metadata=_with("precision.grad_scaler") | _in(_ABOVE_ONE))
    backoff_factor: float = field(default=0.5, metadata=_with("precision.grad_scaler") | _in(_BELOW_ONE))
    growth_interval: int = field(default=2000, metadata=_with("precision.grad_scaler"))
    tf32: bool = False
    """float32 matmuls and convolutions may run in TF32."""
    fp32_matmul: str | None = field(
        default=None, metadata=_with("precision.parameters", "float32") | _one_of(*FP32_MATMULS)
    )
    """Arithmetic of float32 matmuls alone, by torch's names: highest is float32, high TF32 (or three products of
    bfloat16), medium bfloat16. None: as `tf32` says, high or highest."""
    eval: str = field(default="full", metadata=_with("precision.autocast") | _one_of("full", "autocast"))
    """`full`: evaluate without autocast; `autocast`: evaluate under the autocast the training uses."""
    fp32_modules: list[str] = field(default_factory=list, metadata=_with("precision.autocast"))
    """Patterns (fnmatch) of the names of modules that compute in float32 under autocast, with all within them."""


@dataclass(kw_only=True)
class ComponentConfig:
    """Anything built from a `_target_`: the other keys are its constructor's arguments."""

    _target_: str = MISSING
    name: str = MISSING


@dataclass(kw_only=True)
class MLPConfig(ComponentConfig):
    in_features: int = MISSING
    hidden_size: int = MISSING
    out_features: int = MISSING
    num_layers: int = MISSING


@dataclass(kw_only=True)
class GPTConfig(ComponentConfig):
    vocab_size: int = MISSING
    seq_len: int = MISSING
    num_layers: int = MISSING
    hidden_size: int = MISSING
    num_heads: int = MISSING
    dropout: float = field(default=0.0, metadata=_in(_SHARE))


@dataclass(kw_only=True)
class ResNetConfig(ComponentConfig):
    depth: int = MISSING
    num_classes: int = MISSING
    in_channels: int = MISSING
    image_size: int = MISSING


@dataclass(kw_only=True)
class ImageGANConfig(ComponentConfig):
    image_size: int = MISSING
    in_channels: int = MISSING
    latent_size: int = MISSING
    hidden_size: int = MISSING


@dataclass(kw_only=True)
class TwoHeadedConfig(ComponentConfig):
    in_features: int = MISSING
    hidden_size: int = MISSING
    out_features: int = MISSING


@dataclass(kw_only=True)
class DataConfig(ComponentConfig):
    """`provides` holds facts a model may refer to (`${data.provides.vocab_size}`), not constructor arguments."""

    batch_size: int = MISSING
    provides: dict[str, int] = MISSING


@dataclass(kw_only=True)
class SyntheticRegressionConfig(DataConfig):
    in_features: int = MISSING
    out_features: int = MISSING
    num_batches: int = MISSING


@dataclass(kw_only=True)
class SyntheticTokensConfig(DataConfig):
    vocab_size: int = MISSING
    seq_len: int = MISSING
    num_batches: int = MISSING


@dataclass(kw_only=True)
class SyntheticImagesConfig(DataConfig):
    image_size: int = MISSING
    in_channels: int = MISSING
    num_classes: int = MISSING
    num_batches: int = MISSING


@dataclass(kw_only=True)
class ImageFolderConfig(DataConfig):
    path: str = MISSING
    num_classes: int = MISSING
    image_size: int = MISSING
    val_fraction: float = field(default=0.1, metadata=_in(_OPEN_SHARE))
    """Share of the images that is held out where the folder has no `train` and `val`."""
    augment: bool = True
    num_workers: int = field(default=0, metadata=_in(NOT_NEGATIVE))
    """Processes that read ahead, for each rank."""
    prefetch_factor: int | None = None
    """Batches that each of them has read ahead. None: torch's default, 2."""


@dataclass(kw_only=True)
class DigitsConfig(DataConfig):
    val_fraction: float = field(default=0.2, metadata=_in(_OPEN_SHARE))


@dataclass(kw_only=True)
class TextConfig(DataConfig):
    path: str | None = None
    seq_len: int = MISSING
    val_fraction: float = field(default=0.1, metadata=_in(_OPEN_SHARE))
    num_val_batches: int = 20


@dataclass(kw_only=True)
class TokensConfig(DataConfig):
    path: str = MISSING
    val_path: str | None = None
    vocab_size: int = MISSING
    seq_len: int = MISSING
    dtype: str = "uint16"
    val_fraction: float = field(default=0.01, metadata=_in(_OPEN_SHARE))
    num_val_batches: int = 20


@dataclass(kw_only=True)
class OutputTaskConfig(ComponentConfig):
    output: str | None = None
    """Key, attribute or index of the tensor in what the model returns; None: the model returns the tensor itself."""


@dataclass(kw_only=True)
class ClassificationConfig(OutputTaskConfig):
    label_smoothing: float = field(default=0.0, metadata=_in(_SHARE))
    gradient_penalty: float = field(default=0.0, metadata=_in(NOT_NEGATIVE))
    """Weight in the training's loss of the 2-norm of the cross-entropy's gradients by all parameters, as one vector; 0:
    none is computed."""


@dataclass(kw_only=True)
class WassersteinGANConfig(ComponentConfig):
    critic_steps: int = 5
    gradient_penalty: float = field(default=10.0, metadata=_in(NOT_NEGATIVE))


@dataclass(kw_only=True)
class ModelLossConfig(ComponentConfig):
    input_argument: str | None = None
    target_argument: str | None = None
    targets: str = "targets"


@dataclass(kw_only=True)
class OptimizerConfig(ComponentConfig):
    """An optimizer; keys that are not named here are arguments of its class."""

    lr: float = MISSING
    weight_decay: float = field(default=0.0, metadata=_in(NOT_NEGATIVE))
    fused: bool | None = None
    """None: fused if torch has fused kernels of the class for the device."""
    foreach: bool | None = None
    """None, here and for `capturable`: as the class chooses."""
    capturable: bool | None = None
    state_dtype: str | None = None
    """dtype in which what is kept for each parameter is stored between steps: float32 or bfloat16. None:
    that of the parameters or, of modes that say otherwise, theirs."""
    groups: list[Any] = field(default_factory=list)
    """Parameter groups, each with `match` (patterns of parameter names) and the hyperparameters in which it differs;
    the first group that matches takes a parameter."""
    each: dict[str, Any] = field(default_factory=dict)
    """Settings in which one of several optimizers differs, by its name."""


@dataclass(kw_only=True)
class SGDConfig(OptimizerConfig):
    _target_: str = "torch.optim.SGD"
    momentum: float = field(default=0.0, metadata=_in(_SHARE))
    nesterov: bool = False


@dataclass(kw_only=True)
class AdamConfig(OptimizerConfig):
    _target_: str = "torch.optim.Adam"
    beta1: float = field(default=0.9, metadata=_in(_SHARE))
    beta2: float = field(default=0.999, metadata=_in(_SHARE))
    eps: float = field(default=1e-8, metadata=_in(NOT_NEGATIVE))


@dataclass(kw_only=True)
class AdamWConfig(AdamConfig):
    _target_: str = "torch.optim.AdamW"
    weight_decay: float = field(default=0.01, metadata=_in(NOT_NEGATIVE))


@dataclass(kw_only=True)
class RMSpropConfig(OptimizerConfig):
    _target_: str = "torch.optim.RMSprop"
    alpha: float = field(default=0.99, metadata=_in(_SHARE))
    eps: float = field(default=1e-8, metadata=_in(NOT_NEGATIVE))
    momentum: float = field(default=0.0, metadata=_in(_SHARE))
    centered: bool = False


@dataclass(kw_only=True)
class AdagradConfig(OptimizerConfig):
    _target_: str = "torch.optim.Adagrad"
    lr_decay: float = field(default=0.0, metadata=_in(NOT_NEGATIVE))
    initial_accumulator_value: float = field(default=0.0, metadata=_in(NOT_NEGATIVE))
    eps: float = field(default=1e-10, metadata=_in(NOT_NEGATIVE))


OPTIMIZERS: Final[dict[str, type[OptimizerConfig]]] = {
    "sgd": SGDConfig,
    "adam": AdamConfig,
    "adamw": AdamWConfig,
    "rmsprop": RMSpropConfig,
    "adagrad": AdagradConfig,
}
"""The suite's own options of `optimizer`; any other class is `optimizer=custom`."""


@dataclass(kw_only=True)
class SchedulerConfig:
    """A shape by its name. Of `scheduler=custom`, which has a `_target_`, all other keys are arguments."""

    name: str = field(default=MISSING, metadata=_one_of("constant", "linear", "cosine"))
    """The shape after the linear warm-up, over applied steps."""
    num_warmup_steps: int = field(default=0, metadata=_in(NOT_NEGATIVE))
    min_lr_ratio: float = field(default=0.0, metadata=_with("scheduler.name", "linear", "cosine") | _in(_UP_TO_ONE))
    """Share of the peak learning rate that linear and cosine end at."""


@dataclass(kw_only=True)
class TrainerConfig:
    steps: int | None = field(default=MISSING, metadata=_with("trainer.epochs", NULL))
    epochs: int | None = None
    """The length in passes over the data, which replaces `steps`; None: `steps` counts."""
    max_seconds: float | None = None
    """Training stops after the step in which this much time has passed since the first step began."""
    grace_seconds: float = field(default=300.0, metadata=_with("trainer.max_seconds"))
    """A step or an evaluation that takes this much longer than `max_seconds` is ended, and the run with it, as failed;
    building the run may take ten times as much longer."""
    warmup_steps: int = field(default=10, metadata=_in(NOT_NEGATIVE))
    """Steps left out of every figure (not of the training); at most half of a shorter run."""
    warmup_seconds: float | None = field(default=None, metadata=_in(NOT_NEGATIVE))
    """Steps are left out of times, power and energy until this much time has passed, too. None: 2 on an accelerator,
    whose clocks rise under load; 0 on a CPU."""
    grad_accum_steps: int = 1
    accumulate_dtype: str | None = field(default=None, metadata=_one_of(*DTYPES))
    """dtype of the gradients, in which those of micro-batches are added up. None: that of the parameters."""
    max_grad_norm: float | None = None
    """Gradients of an optimizer's parameters are scaled down to at most this 2-norm of all. None: not clipped."""
    max_grad_value: float | None = None
    """Single gradients are clamped to at most this magnitude, before the norm is clipped."""
    log_every: int = 10
    eval_every: int | None = None
    """None: evaluate at the end only."""
    checkpoint_every: int | None = None
    """None: a checkpoint only when the run is interrupted."""
    compile: bool = False
    cudnn_benchmark: bool | None = None
    """cuDNN tries its algorithms for each new shape and takes the quickest (CUDA only). None: as torch is set."""
    channels_last: bool = False
    activation_checkpointing: bool = False
    memory_limit_gib: float | None = None
    """Emulates a device with this much memory. On CUDA it limits what the allocator reserves; on the CPU the bytes of
    all tensors alive, checked after each operator, which makes steps too slow to time."""


@dataclass(kw_only=True)
class ParallelConfig:
    """The processes of a training, one a device, and how they share its work."""

    strategy: str = field(default="single", metadata=_one_of("single", "ddp", "fsdp2"))
    """single: one process; ddp: each has the whole model, and gradients are averaged; fsdp2: parameters, gradients and
    optimizer state are sharded."""
    num_processes: int | None = None
    """None: one for each accelerator here, or as many as torchrun has started."""
    reduce_dtype: str | None = field(
        default=None, metadata=_with("parallel.strategy", "ddp", "fsdp2") | _one_of(*DTYPES)
    )
    """dtype in which gradients are added up across processes. None: that of the parameters."""
    mixed_precision: str = field(
        default="policy", metadata=_with("parallel.strategy", "fsdp2") | _one_of("policy", "autocast")
    )
    """fsdp2 under autocast. policy: parameters are cast as they are gathered (MixedPrecisionPolicy); autocast: they are
    gathered as they are, and autocast casts."""
    blocks: list[str] = field(default_factory=list, metadata=_with("parallel.strategy", "fsdp2"))
    """fsdp2: patterns (fnmatch) of names of modules that are gathered one at a time. Empty: the model's own `blocks` or
    `_no_split_modules` (Hugging Face)."""
    reshard_after_forward: bool = field(default=True, metadata=_with("parallel.strategy", "fsdp2"))
    """fsdp2: free a block's gathered parameters after its forward pass, and gather them again for backward."""
    sync_batchnorm: bool = field(default=False, metadata=_with("parallel.strategy", "ddp"))
    """Batch normalization uses the batches of all processes (CUDA only)."""
    find_unused_parameters: bool = field(default=False, metadata=_with("parallel.strategy", "ddp"))
    """ddp: the losses of ranks may depend on different parameters."""


@dataclass(kw_only=True)
class TrackingConfig:
    mode: str = field(default="auto", metadata=_one_of("auto", "online", "offline", "disabled"))
    """auto: online where there is a key, else offline; or online, offline, disabled."""
    project: str = field(default_factory=lambda: os.environ.get("WANDB_PROJECT", "ampsweep"))
    entity: str | None = None
    group: str | None = None
    """None: the name of the multirun's directory."""
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    """Text shown with the run in W&B."""
    alerts: bool = True
    """Send a W&B alert for a run that runs out of memory, diverges, is slowed down, or whose scale collapses."""
    checkpoints: bool = False
    """Upload the newest checkpoint, if there is one, to W&B as an artifact."""
    code: bool = False
    """Upload the Python files of the working directory to W&B as an artifact."""
    console: bool = False
    """Keep what the run's process prints in `output.log`, and upload it to W&B as the run's log."""


@dataclass(kw_only=True)
class ReportConfig:
    baseline: str = "fp32"
    """The arm that the others are compared with."""
    margin_pct: float = 1.0
    """Loss gap, in percent of the baseline's loss, within which two arms count as having learned the same."""
    memory_gib: float | None = None
    """Memory that the recommended arm must fit into: peak of allocated tensor bytes, on the fullest rank. None: that of
    the device it ran on."""


@dataclass(kw_only=True)
class MaxBatchConfig:
    search: bool = False
    """Look for the largest batch that trains, beginning with `data.batch_size`, and train with it."""
    limit: int = field(default=65536, metadata=_with("max_batch.search"))
    """The largest batch that is tried."""


@dataclass(kw_only=True)
class PredictConfig:
    """Settings of `ampsweep predict`, and of the predictions that a training makes for itself."""

    target: str = field(default="auto", metadata=_with(COMMAND, "predict") | _one_of("auto", "cpu", "cuda"))
    """Device whose memory is predicted: cpu or cuda; auto is the kind that `device` means."""
    memory_gib: float | None = field(default=None, metadata=_with(COMMAND, "predict"))
    """Memory that the largest batch must fit into: what torch's allocator may take; on the CPU the tensors' bytes."""
    batch_sizes: list[int] | None = field(default=None, metadata=_with(COMMAND, "predict"))
    """Batch sizes of the table. None: powers of two around `data.batch_size`."""
    capability: str | None = field(default=None, metadata=_with(COMMAND, "predict"))
    """CUDA compute capability of the target. None: that of this machine's GPU, else 8.0."""
    write: bool = field(default=False, metadata=_with(COMMAND, "predict"))
    """Leave a record (`kind: predicted`) for each mode below `output_dir`."""
    with_runs: bool = True
    """Predict the memory of each run: to warn before one that will not fit, for its record, and for the first batch of
    the search for the largest."""


Complaint = Literal["types", "loss", "numerics", "memory", "speed"]
"""A complaint about a training in low precision, the most serious first. `types`: operators get dtypes that they do not
take together; `loss`: not finite, or worse than in float32; `numerics`: an operator's error is larger than its dtype
explains; `memory`: it did not shrink; `speed`: the gain is small."""
COMPLAINTS: Final[tuple[Complaint, ...]] = get_args(Complaint)


@dataclass(kw_only=True)
class DoctorConfig:
    """Settings of `ampsweep doctor`."""

    complaints: list[str] = field(default_factory=list, metadata=_with(COMMAND, "doctor") | _one_of(*COMPLAINTS))
    """The complaints that are examined. Empty: all."""
    steps: int = field(default=20, metadata=_with(COMMAND, "doctor"))
    """Steps that are taken at most in each replay."""
    max_seconds: float = field(default=300.0, metadata=_with(COMMAND, "doctor"))
    """Time after which examinations come to an end with what they have found."""


@dataclass(kw_only=True)
class NumericsConfig:
    """Watching the magnitudes of a training's values."""

    watch: bool = False
    """Observe activations, gradients, weights and updates, and note which gradients cause a skipped step."""
    every: int | None = field(default=None, metadata=_with("numerics.watch"))
    """Steps from one look to the next. None: so many that looking takes half a percent of the time."""


@dataclass(kw_only=True)
class Config:
    """One training. Its `COMPONENTS` are mappings: of one of the schemas or, for a user's own class, of any keys."""

    name: str = MISSING
    """Experiment name: the folder under `output_dir` that runs go to."""
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
    device: str = "auto"
    """auto: the accelerator torch reports, else the CPU; or cpu, cuda, cuda:1, mps."""
    resume: str | None = None
    """auto: the newest unfinished run of this config; or a checkpoint or run directory, also as a pattern that fits one
    only (`DIR/fp32-*-s0-*`)."""
    into: str | None = None
    """Directory of an earlier multirun to complete or extend."""
    dry_run: bool = False
    """List the points, check them, estimate the time, train nothing."""
    output_dir: str = "outputs"

    @property
    def begins_elsewhere(self) -> bool:
        """True if the run goes on from a checkpoint that `resume` names."""
        return self.resume not in (None, "auto")


COMPONENTS: Final = ("model", "data", "task", "optimizer", "scheduler")
"""Parts of a Config that are built from a `_target_`; a scheduler that has none is a shape by its name."""
SCHEMAS: Final[dict[str, dict[str, type]]] = {
    "model": {
        "mlp": MLPConfig,
        "gpt": GPTConfig,
        "resnet": ResNetConfig,
        "image_gan": ImageGANConfig,
        "two_headed": TwoHeadedConfig,
    },
    "data": {
        "synthetic_regression": SyntheticRegressionConfig,
        "synthetic_tokens": SyntheticTokensConfig,
        "synthetic_images": SyntheticImagesConfig,
        "image_folder": ImageFolderConfig,
        "digits": DigitsConfig,
        "text": TextConfig,
        "tokens": TokensConfig,
    },
    "task": {
        "component": ComponentConfig,
        "output_task": OutputTaskConfig,
        "classification": ClassificationConfig,
        "model_loss": ModelLossConfig,
        "wasserstein_gan": WassersteinGANConfig,
    },
    "optimizer": dict(OPTIMIZERS),
    "scheduler": {"shape": SchedulerConfig},
}
"""By group: the schemas that options of it are checked against."""

FIELDS: Final[dict[str, Field[Any]]] = {
    f"{group}.{one.name}": one
    for group, part in get_type_hints(Config).items()
    for schema in ([part] if is_dataclass(part) else SCHEMAS.get(group, {}).values())
    for one in fields(schema)
}
"""The fields of all schemas by their keys in a config."""


def component_name(component: dict[str, Any]) -> str:
    """The name of a component: its `name`, else the last part of its `_target_`.

    >>> component_name({"_target_": "mine.nets.Net", "width": 8})
    'Net'
    """
    name = component.get("name")
    if name and name != "custom":
        return str(name)
    return str(component["_target_"]).rpartition(".")[2]
