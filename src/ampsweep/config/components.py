"""Schemas of the components: models, data sets, tasks, optimizers and schedulers, which are built from a `_target_`."""

from collections.abc import Mapping
from dataclasses import field, make_dataclass
from typing import Any, Final

from omegaconf import MISSING

from ampsweep.config.field_rules import NOT_NEGATIVE, OPEN_SHARE, SHARE, UP_TO_ONE, Schema, needs, one_of, within


class ComponentConfig(Schema):
    """A class to build: the keys besides `_target_` and `name` are arguments of its constructor."""

    _target_: str = MISSING
    name: str = MISSING


class GPTConfig(ComponentConfig):
    vocab_size: int = MISSING
    seq_len: int = MISSING
    num_layers: int = MISSING
    hidden_size: int = MISSING
    num_heads: int = MISSING
    dropout: float = field(default=0.0, metadata=within(SHARE))


class LlamaConfig(ComponentConfig):
    vocab_size: int = MISSING
    num_layers: int = MISSING
    hidden_size: int = MISSING
    num_heads: int = MISSING
    num_kv_heads: int = MISSING
    intermediate_size: int = MISSING
    rope_base: float = 500000.0


class DataConfig(ComponentConfig):
    batch_size: int = MISSING
    provides: dict[str, int] = MISSING
    """Sizes that a model may refer to (`${data.provides.vocab_size}`); not an argument of the constructor."""


class ImageFolderConfig(DataConfig):
    path: str = MISSING
    num_classes: int = MISSING
    image_size: int = MISSING
    val_fraction: float = field(default=0.1, metadata=within(OPEN_SHARE))
    """Share of the images held out if the folder has no `train` and `val`."""
    augment: bool = True
    num_workers: int = field(default=0, metadata=within(NOT_NEGATIVE))  # processes of each rank that load batches
    prefetch_factor: int | None = None  # batches that each worker loads ahead. None: torch's default, 2.


class DigitsConfig(DataConfig):
    val_fraction: float = field(default=0.2, metadata=within(OPEN_SHARE))


class TextConfig(DataConfig):
    path: str | None = None
    seq_len: int = MISSING
    val_fraction: float = field(default=0.1, metadata=within(OPEN_SHARE))
    num_val_batches: int = 20


class TokensConfig(DataConfig):
    path: str = MISSING
    val_path: str | None = None
    vocab_size: int = MISSING
    seq_len: int = MISSING
    dtype: str = "uint16"
    val_fraction: float = field(default=0.01, metadata=within(OPEN_SHARE))
    num_val_batches: int = 20


class OutputTaskConfig(ComponentConfig):
    output: str | None = None
    """Key, attribute or index of the output tensor in the model's result. None: the result is the tensor."""


class ClassificationConfig(OutputTaskConfig):
    label_smoothing: float = field(default=0.0, metadata=within(SHARE))
    gradient_penalty: float = field(default=0.0, metadata=within(NOT_NEGATIVE))
    """Weight in the training loss of the 2-norm of the cross-entropy's gradient by all parameters. 0: none."""


class WassersteinGANConfig(ComponentConfig):
    critic_steps: int = 5
    gradient_penalty: float = field(default=10.0, metadata=within(NOT_NEGATIVE))


class ModelLossConfig(ComponentConfig):
    input_argument: str | None = None
    target_argument: str | None = None
    targets: str = "targets"


class OptimizerConfig(ComponentConfig):
    lr: float = MISSING
    weight_decay: float = field(default=0.0, metadata=within(NOT_NEGATIVE))
    fused: bool | None = None  # None: fused if torch has fused kernels of the class for the device
    foreach: bool | None = None  # None, for `capturable` too: the default of the class
    capturable: bool | None = None
    state_dtype: str | None = None
    """dtype in which each parameter's state is stored between steps: float32 or bfloat16. None: the mode's, by default
    the dtype of the parameters."""
    groups: list[Any] = field(default_factory=list)
    """Parameter groups, each with `match` (patterns of parameter names) and the hyperparameters that differ; a
    parameter belongs to the first group that matches."""
    each: dict[str, Any] = field(default_factory=dict)
    """Settings that differ for one of several optimizers, by its name."""


class SGDConfig(OptimizerConfig):
    _target_: str = "torch.optim.SGD"
    momentum: float = field(default=0.0, metadata=within(SHARE))
    nesterov: bool = False


class AdamConfig(OptimizerConfig):
    _target_: str = "torch.optim.Adam"
    beta1: float = field(default=0.9, metadata=within(SHARE))
    beta2: float = field(default=0.999, metadata=within(SHARE))
    eps: float = field(default=1e-8, metadata=within(NOT_NEGATIVE))


class AdamWConfig(AdamConfig):
    _target_: str = "torch.optim.AdamW"
    weight_decay: float = field(default=0.01, metadata=within(NOT_NEGATIVE))


class RMSpropConfig(OptimizerConfig):
    _target_: str = "torch.optim.RMSprop"
    alpha: float = field(default=0.99, metadata=within(SHARE))
    eps: float = field(default=1e-8, metadata=within(NOT_NEGATIVE))
    momentum: float = field(default=0.0, metadata=within(SHARE))
    centered: bool = False


class AdagradConfig(OptimizerConfig):
    _target_: str = "torch.optim.Adagrad"
    lr_decay: float = field(default=0.0, metadata=within(NOT_NEGATIVE))
    initial_accumulator_value: float = field(default=0.0, metadata=within(NOT_NEGATIVE))
    eps: float = field(default=1e-10, metadata=within(NOT_NEGATIVE))


class SchedulerConfig(Schema):
    """A shape by its name. `scheduler=custom` has a `_target_` instead, whose arguments are all other keys."""

    name: str = field(default=MISSING, metadata=one_of("constant", "linear", "cosine"))
    """The shape after the linear warm-up, over applied steps."""
    num_warmup_steps: int = field(default=0, metadata=within(NOT_NEGATIVE))
    min_lr_ratio: float = field(default=0.0, metadata=needs("scheduler.name", "linear", "cosine") | within(UP_TO_ONE))
    """Share of the peak learning rate at the end of linear and cosine."""


def _of_sizes(name: str, base: type, *keys: str) -> type:
    """A schema whose keys besides those of `base` are whole numbers without a default."""
    sizes = [(key, int, MISSING) for key in keys]
    return make_dataclass(name, sizes, bases=(base,), namespace={"__module__": __name__}, kw_only=True)  # for pickle


MLPConfig = _of_sizes("MLPConfig", ComponentConfig, "in_features", "hidden_size", "out_features", "num_layers")
ResNetConfig = _of_sizes("ResNetConfig", ComponentConfig, "depth", "num_classes", "in_channels", "image_size")
ImageGANConfig = _of_sizes("ImageGANConfig", ComponentConfig, "image_size", "in_channels", "latent_size", "hidden_size")
TwoHeadedConfig = _of_sizes("TwoHeadedConfig", ComponentConfig, "in_features", "hidden_size", "out_features")
RegressionConfig = _of_sizes("RegressionConfig", DataConfig, "in_features", "out_features", "num_batches")
RandomTokensConfig = _of_sizes("RandomTokensConfig", DataConfig, "vocab_size", "seq_len", "num_batches")
ImagesConfig = _of_sizes("ImagesConfig", DataConfig, "image_size", "in_channels", "num_classes", "num_batches")


def is_plateau(scheduler: Mapping[str, Any]) -> bool:
    """Whether a scheduler is torch's ReduceLROnPlateau, which follows `trainer.metric`."""
    return str(scheduler.get("_target_", "")).endswith("ReduceLROnPlateau")


OPTIMIZERS: Final[dict[str, type[OptimizerConfig]]] = {
    "sgd": SGDConfig,
    "adam": AdamConfig,
    "adamw": AdamWConfig,
    "rmsprop": RMSpropConfig,
    "adagrad": AdagradConfig,
}
"""The suite's own options of `optimizer`; any other class is `optimizer=custom`."""

SCHEMAS: Final[dict[str, dict[str, type]]] = {
    "model": {
        "mlp": MLPConfig,
        "gpt": GPTConfig,
        "llama": LlamaConfig,
        "resnet": ResNetConfig,
        "image_gan": ImageGANConfig,
        "two_headed": TwoHeadedConfig,
    },
    "data": {
        "synthetic_regression": RegressionConfig,
        "synthetic_tokens": RandomTokensConfig,
        "synthetic_images": ImagesConfig,
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
"""Group -> name -> the schema that its options are checked against."""
