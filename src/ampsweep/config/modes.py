"""The table of precision modes, and what follows from it: labels of arms and dtypes. A new mode is an entry of the
table; if it computes in a new way, the entry names its class (`ampsweep.precision`)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from ampsweep.config.field_rules import NEEDS, is_met
from ampsweep.config.schema import Config, PrecisionConfig


@dataclass(frozen=True, kw_only=True)
class StepDtypes:
    """The five dtypes of a training step, by torch's names."""

    compute: str  # operands of matmuls and convolutions
    parameters: str
    gradients: str  # gradients, in which micro-batches are accumulated
    reduction: str  # gradients while they are reduced across ranks
    optimizer_state: str


@dataclass(frozen=True, kw_only=True)
class Mode:
    settings: PrecisionConfig  # the mode's name, and its differences from the defaults of `PrecisionConfig`
    colour: str  # colour of the mode's arms in every report
    implementation: str | None = None
    """`module:Class` of its subclass of `ampsweep.precision.Precision`. None: `Precision` itself."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Fields of `StepDtypes` that the mode's class decides, not the settings."""

    @property
    def name(self) -> str:
        return self.settings.mode


_TABLE: Final = (
    Mode(settings=PrecisionConfig(mode="fp32"), colour="#999999"),
    Mode(settings=PrecisionConfig(mode="tf32", tf32=True), colour="#e69f00"),
    Mode(settings=PrecisionConfig(mode="amp_fp16", autocast=True, dtype="float16", grad_scaler=True), colour="#d55e00"),
    Mode(settings=PrecisionConfig(mode="amp_bf16", autocast=True, dtype="bfloat16"), colour="#56b4e9"),
    Mode(settings=PrecisionConfig(mode="pure_bf16", parameters="bfloat16", dtype="bfloat16"), colour="#009e73"),
    Mode(settings=PrecisionConfig(mode="pure_fp16", parameters="float16", dtype="float16"), colour="#cc79a7"),
    Mode(
        settings=PrecisionConfig(mode="bf16_sr", parameters="bfloat16", dtype="bfloat16"),
        colour="#60c060",
        implementation="ampsweep.precision.low_precision_parameters:StochasticRounding",
    ),
    Mode(
        settings=PrecisionConfig(mode="master_bf16", parameters="bfloat16", dtype="bfloat16"),
        colour="#0072b2",
        implementation="ampsweep.precision.low_precision_parameters:MasterWeights",
        dtypes={"optimizer_state": "float32"},
    ),
    Mode(
        settings=PrecisionConfig(mode="master_fp16", parameters="float16", dtype="float16", grad_scaler=True),
        colour="#006060",
        implementation="ampsweep.precision.low_precision_parameters:MasterWeights",
        dtypes={"optimizer_state": "float32"},
    ),
    Mode(
        settings=PrecisionConfig(mode="fp8_tensorwise", autocast=True, dtype="bfloat16"),
        colour="#c200f2",
        implementation="ampsweep.precision.float8:Float8",
        dtypes={"compute": "float8_e4m3fn"},
    ),
    Mode(
        settings=PrecisionConfig(mode="fp8_rowwise", autocast=True, dtype="bfloat16"),
        colour="#a6453a",
        implementation="ampsweep.precision.float8:Float8",
        dtypes={"compute": "float8_e4m3fn"},
    ),
)
"""All modes in the order in which messages list them; `conf/precision` says what each is for. The colours come from the
colour-blind safe palette of M. Okabe and K. Ito, Color Universal Design (2008); these suit light and dark backgrounds.
"""

MODES: Final[Mapping[str, Mode]] = {mode.name: mode for mode in _TABLE}

_IN_REPORTS: Final = sorted(
    MODES, key=lambda name: (MODES[name].settings.parameters != "float32", MODES[name].settings.grad_scaler)
)
"""Names in the order of reports: float32 parameters first, then modes without a scaler, else as in the table."""

PRECISION_MODES: Final[Mapping[str, PrecisionConfig]] = {name: mode.settings for name, mode in MODES.items()}
"""The settings that `precision=NAME` composes to."""

_TORCHAO_STATES: Final = {"8bit": "uint8", "4bit": "uint8", "Fp8": "float8_e4m3fn"}
"""dtypes in which torchao's optimizers store their states, by the ends of their class names."""

ARM_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "parallel": ("reduce_dtype", "mixed_precision"),
    "optimizer": ("state_dtype",),
    "trainer": ("accumulate_dtype",),
}
"""Keys of other groups that belong to the arm: runs that differ in them are different arms, and pair."""

DOTTED_ARM_KEYS: Final = tuple(f"{group}.{key}" for group, keys in ARM_KEYS.items() for key in keys)

_BY_TF32: Final = {True: "high", False: "highest"}  # `tf32` -> the value of `FP32_MATMULS` that it stands for
_AFTER: Final = re.compile(r" after step \d+ of ")


def arm_after(arm: str, saved_in: str, step: int) -> str:
    """The label of runs in `arm` that continue from a checkpoint; the label stays the same if the arm does.

    >>> arm_after("amp_bf16", "fp32", 20), arm_after("fp32", "fp32", 20)
    ('amp_bf16 after step 20 of fp32', 'fp32')
    """
    return saved_in if own_arm(saved_in) == arm else f"{arm} after step {step} of {saved_in}"


def own_arm(arm: str) -> str:
    """The arm that runs trained in, without the arms of earlier checkpoints."""
    return _AFTER.split(arm)[0]


def arm_before(arm: str) -> str | None:
    """The arm of the checkpoint that runs continued from; None if they started from scratch.

    >>> arm_before("fp32 after step 40 of amp_bf16 after step 20 of fp32"), arm_before("fp32")
    ('amp_bf16 after step 20 of fp32', None)
    """
    return None if (found := _AFTER.search(arm)) is None else arm[found.end() :]


def mode_of(arm: str) -> Mode | None:
    """The mode in an arm's label; None if it is unknown.

    >>> mode_of("amp_bf16+cache_enabled=false").name
    'amp_bf16'
    """
    return MODES.get(own_arm(arm).partition("+")[0])


def report_order(arm: str) -> tuple[int, str]:
    """A sort key for arms: by mode, arms of unknown modes last."""
    mode = mode_of(arm)
    return len(_IN_REPORTS) if mode is None else _IN_REPORTS.index(mode.name), arm


def arm_of(config: Config) -> str:
    """The canonical name of a training's precision: `arm_label`, then the `outside_differences`."""
    return "+".join([arm_label(config.precision), *_settings(outside_differences(config))])


def arm_label(precision: PrecisionConfig) -> str:
    """The canonical name of these settings: the mode, then each field that has an effect and differs from the mode's.

    So `precision=fp32 precision.init_scale=1024` is still the arm `fp32`.

    >>> arm_label(PrecisionConfig(mode="amp_bf16", autocast=True, dtype="bfloat16", cache_enabled=False))
    'amp_bf16+cache_enabled=false'
    """
    stock = PRECISION_MODES.get(precision.mode, PrecisionConfig(mode=precision.mode))
    idle = _without_effect(precision)
    changed = {name: value for name, value in differences(precision, stock).items() if name not in idle}
    return "+".join([precision.mode, *_settings(changed)])


def outside_differences(config: Config) -> dict[str, str]:
    """The keys of `ARM_KEYS` (without groups) that change a dtype of this training, with their values."""
    precision, parallel, changed = config.precision, config.parallel, {}
    own = step_dtypes(precision)
    if parallel.strategy != "single" and parallel.reduce_dtype not in (None, own.reduction):
        changed["reduce_dtype"] = str(parallel.reduce_dtype)
    if parallel.strategy == "fsdp2" and precision.autocast and parallel.mixed_precision != "policy":
        changed["mixed_precision"] = parallel.mixed_precision
    if (state := config.optimizer.get("state_dtype")) not in (None, own.optimizer_state):
        changed["state_dtype"] = str(state)
    if config.trainer.accumulate_dtype not in (None, own.gradients):
        changed["accumulate_dtype"] = str(config.trainer.accumulate_dtype)
    return changed


def with_effect(precision: PrecisionConfig) -> PrecisionConfig:
    """The settings with each field that has no effect at its default."""
    stock = PrecisionConfig(mode=precision.mode)
    return replace(precision, **{name: getattr(stock, name) for name in _without_effect(precision)})


def without_fp32_arithmetic(precision: PrecisionConfig) -> PrecisionConfig:
    """The settings without TF32, for every device, for steps of which only sizes matter."""
    return replace(precision, tf32=False, fp32_matmul=None)


def differences(precision: PrecisionConfig, stock: PrecisionConfig) -> dict[str, Any]:
    """The fields of `precision` that differ from `stock`, with their values."""
    return {name: value for name, value in vars(precision).items() if value != getattr(stock, name)}


def fp32_matmul(precision: PrecisionConfig) -> str:
    """The value of `FP32_MATMULS` that these settings compute float32 matmuls in."""
    return with_effect(precision).fp32_matmul or _BY_TF32[precision.tf32]


def step_dtypes(precision: PrecisionConfig) -> StepDtypes:
    """The dtypes of a step with these settings: autocast computes in its own, all else has that of the parameters."""
    mode, stored = MODES.get(precision.mode), precision.parameters
    dtypes = dict.fromkeys(("compute", "parameters", "gradients", "reduction", "optimizer_state"), stored)
    if precision.autocast:
        dtypes["compute"] = precision.dtype
    return StepDtypes(**(dtypes if mode is None else dtypes | dict(mode.dtypes)))


def dtypes_of(config: Config) -> StepDtypes:
    """The dtypes of a step of this training, by its precision and the keys of `ARM_KEYS`.

    The reduction of a single process is what it would be with several. FSDP2 accumulates micro-batches in the dtype of
    the reduction (`FSDPParam.to_accumulated_grad_if_needed` in torch).
    """
    own, parallel = step_dtypes(config.precision), config.parallel
    reduction, gradients = own.reduction, config.trainer.accumulate_dtype or own.gradients
    if parallel.strategy != "single" and parallel.reduce_dtype is not None:
        reduction = parallel.reduce_dtype
        if parallel.strategy == "fsdp2":
            gradients = parallel.reduce_dtype
    state = config.optimizer.get("state_dtype") or _packed_state(config.optimizer) or own.optimizer_state
    return replace(own, reduction=reduction, gradients=gradients, optimizer_state=state)


def _packed_state(optimizer: Mapping[str, Any]) -> str | None:
    target = str(optimizer["_target_"])
    found = (dtype for end, dtype in _TORCHAO_STATES.items() if target.endswith(end))
    return next(found, None) if target.startswith("torchao.optim.") else None


def _settings(changed: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_text(value)}" for name, value in changed.items()]


def _without_effect(precision: PrecisionConfig) -> set[str]:
    idle = set()
    for known in fields(precision):
        key, values = known.metadata.get(NEEDS, ("", ()))
        group, _, name = key.partition(".")
        if group == "precision" and not is_met(getattr(precision, name), values):
            idle.add(known.name)
    if precision.fp32_matmul == _BY_TF32[precision.tf32]:  # `tf32` says so already
        idle.add("fp32_matmul")
    return idle


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(sorted({str(item) for item in value}))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)  # arms that differ must not share a label
    return str(value)
