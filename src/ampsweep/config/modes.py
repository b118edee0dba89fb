"""The table of precision modes, and the names derived from it: labels of arms, their differences, dtypes.

A new mode is an entry of `MODES`; one that computes in a new way names its class (`ampsweep.precision`) there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from ampsweep.config.schema import ParallelConfig, PrecisionConfig


@dataclass(frozen=True, kw_only=True)
class StepDtypes:
    """The five dtypes that make the precision of a training step, by their names in torch."""

    compute: str
    """dtype of the operands of matmuls and convolutions."""
    parameters: str
    gradients: str
    """dtype of gradients while micro-batches are added up."""
    reduction: str
    """dtype of gradients while they are added up across ranks."""
    optimizer_state: str


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One precision mode: an entry of the table."""

    settings: PrecisionConfig
    """The mode's name and the fields it sets differently from the defaults of `PrecisionConfig`."""
    summary: str
    """One sentence, as `conf/precision` has it too."""
    colour: str
    """Colour of the mode's arms in every report."""
    implementation: str | None = None
    """`module:Class` of the `ampsweep.precision.Precision` that computes in this mode; None: `Precision` itself."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Fields of `StepDtypes` that the mode's class decides, so that they do not follow from the settings."""

    @property
    def name(self) -> str:
        """The name that `precision=` takes."""
        return self.settings.mode


_TABLE: Final = (
    Mode(
        settings=PrecisionConfig(mode="fp32"),
        summary="True float32: TF32 off for matmuls and cuDNN.",
        colour="#999999",
    ),
    Mode(
        settings=PrecisionConfig(mode="tf32", tf32=True),
        summary="float32 storage, matmuls and convolutions in TF32 (NVIDIA Ampere and later).",
        colour="#e69f00",
    ),
    Mode(
        settings=PrecisionConfig(mode="amp_fp16", autocast=True, dtype="float16", grad_scaler=True),
        summary="Autocast to float16 with a GradScaler; parameters, gradients and optimizer state stay float32.",
        colour="#d55e00",
    ),
    Mode(
        settings=PrecisionConfig(mode="amp_bf16", autocast=True, dtype="bfloat16"),
        summary="Autocast to bfloat16, which has the range of float32 and needs no scaler.",
        colour="#56b4e9",
    ),
    Mode(
        settings=PrecisionConfig(mode="pure_bf16", parameters="bfloat16", dtype="bfloat16"),
        summary="Everything in bfloat16: half the bytes of parameters, gradients and optimizer state.",
        colour="#009e73",
    ),
    Mode(
        settings=PrecisionConfig(mode="pure_fp16", parameters="float16", dtype="float16"),
        summary="Everything in float16. No scaler can help here: GradScaler refuses to unscale float16 gradients.",
        colour="#cc79a7",
    ),
)
"""All modes, in the order in which commands and messages list them. The colours come from the palette of M. Okabe and
K. Ito, Color Universal Design (2008), which colour-blind readers can tell apart; these suit light and dark grounds."""

MODES: Final[Mapping[str, Mode]] = {mode.name: mode for mode in _TABLE}
"""The table by name."""

_IN_REPORTS: Final = sorted(
    MODES, key=lambda name: (MODES[name].settings.parameters != "float32", MODES[name].settings.grad_scaler)
)
"""Names in the order of reports: the table's order, except that float32 parameters come before other parameters and,
among them, modes without a scaler before modes with one."""

PRECISION_MODES: Final[Mapping[str, PrecisionConfig]] = {name: mode.settings for name, mode in MODES.items()}
"""The settings of each mode, for Python callers; `precision=NAME` composes to the same."""


_COUNTS_WITH: Final[Mapping[str, str]] = {
    **dict.fromkeys(("cache_enabled", "eval", "fp32_modules"), "autocast"),
    **dict.fromkeys(("init_scale", "growth_factor", "backoff_factor", "growth_interval"), "grad_scaler"),
}
"""Fields without any effect unless another one is true."""


PARALLEL_ARM_KEYS: Final = ("reduce_dtype", "mixed_precision")
"""Keys of `parallel` that are a matter of precision: runs that differ in them are arms, and pair."""


def mode_of(arm: str) -> Mode | None:
    """Find the mode that an arm started from, by the arm's label; None if the table has no such mode.

    >>> mode_of("amp_bf16+cache_enabled=false").name
    'amp_bf16'
    """
    return MODES.get(arm.partition("+")[0])


def report_order(arm: str) -> tuple[int, str]:
    """A sort key for arms: by mode in the order of reports, arms of unknown modes last."""
    mode = mode_of(arm)
    return len(_IN_REPORTS) if mode is None else _IN_REPORTS.index(mode.name), arm


def arm_label(precision: PrecisionConfig, parallel: ParallelConfig | None = None) -> str:
    """The canonical name of these settings: the mode, then every field that differs from the mode's settings (from the
    defaults, if the table has no such mode) and has an effect, then what several processes change of the precision.

    So the baseline of a sweep over `precision=fp32,amp_fp16 precision.init_scale=1024` is the arm `fp32`.

    >>> arm_label(PrecisionConfig(mode="amp_bf16", autocast=True, dtype="bfloat16", cache_enabled=False))
    'amp_bf16+cache_enabled=false'
    """
    stock = PRECISION_MODES.get(precision.mode, PrecisionConfig(mode=precision.mode))
    idle = _without_effect(precision)
    changed = {name: value for name, value in differences(precision, stock).items() if name not in idle}
    changed |= parallel_differences(precision, parallel or ParallelConfig())
    return "+".join([precision.mode, *(f"{name}={_text(value)}" for name, value in changed.items())])


def parallel_differences(precision: PrecisionConfig, parallel: ParallelConfig) -> dict[str, str]:
    """Fields of `PARALLEL_ARM_KEYS` that change the dtypes of these settings, with their values."""
    changed = {}
    if parallel.strategy != "single" and parallel.reduce_dtype not in (None, precision.parameters):
        changed["reduce_dtype"] = str(parallel.reduce_dtype)
    if parallel.strategy == "fsdp2" and precision.autocast and parallel.mixed_precision != "policy":
        changed["mixed_precision"] = parallel.mixed_precision
    return changed


def with_effect(precision: PrecisionConfig) -> PrecisionConfig:
    """These settings with every field that has no effect in them at its default."""
    stock = PrecisionConfig(mode=precision.mode)
    return replace(precision, **{name: getattr(stock, name) for name in _without_effect(precision)})


def differences(precision: PrecisionConfig, stock: PrecisionConfig) -> dict[str, Any]:
    """Fields in which `precision` differs from `stock`, with their values."""
    values = {one.name: getattr(precision, one.name) for one in fields(precision)}
    return {name: value for name, value in values.items() if value != getattr(stock, name)}


def step_dtypes(precision: PrecisionConfig, parallel: ParallelConfig | None = None) -> StepDtypes:
    """The dtypes that these settings promise for a step: autocast has its own, all else uses that of the parameters.

    One process alone reduces nothing: its reduction is what it would be with several. FSDP2 adds micro-batches up in
    the dtype of the reduction (`FSDPParam.to_accumulated_grad_if_needed` in torch).
    """
    mode, kept = MODES.get(precision.mode), precision.parameters
    told = {
        "compute": precision.dtype if precision.autocast else kept,
        **dict.fromkeys(("parameters", "gradients", "reduction", "optimizer_state"), kept),
    }
    if parallel is not None and parallel.strategy != "single" and parallel.reduce_dtype is not None:
        told["reduction"] = parallel.reduce_dtype
        if parallel.strategy == "fsdp2":
            told["gradients"] = parallel.reduce_dtype
    return StepDtypes(**(told if mode is None else told | dict(mode.dtypes)))


def _without_effect(precision: PrecisionConfig) -> set[str]:
    return {name for name, needed in _COUNTS_WITH.items() if not getattr(precision, needed)}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(sorted({str(item) for item in value}))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)  # arms that differ must not share a label
    return str(value)
