"""The one table of precision modes, and the names made from it: labels of arms, differences, dtypes.

A new mode is an entry of `MODES`; one that computes in a new way names its class (`ampsweep.precision`) there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ampsweep.config.schema import PrecisionConfig


@dataclass(frozen=True, kw_only=True)
class StepDtypes:
    """The five dtypes that make the precision of a training step, by their names in torch."""

    compute: str
    """Operands of matmuls and convolutions."""
    parameters: str
    gradients: str
    """Gradients while micro-batches are added up."""
    reduction: str
    """Gradients while they are added up across ranks."""
    optimizer_state: str


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One precision mode: an entry of the table."""

    settings: PrecisionConfig
    """Its name and what it sets other than `PrecisionConfig` does by default."""
    summary: str
    """One sentence, as `conf/precision` has it too."""
    colour: str
    """In every report, of the mode's arms."""
    implementation: str | None = None
    """`module:Class` of the `ampsweep.precision.Precision` that computes it; None: `Precision` does as it stands."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Those of `StepDtypes` that the settings do not tell because the mode's class decides them."""

    @property
    def name(self) -> str:
        """As `precision=` takes it."""
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
"""In the order that commands and messages list modes in. The colours are of the palette of M. Okabe and K. Ito, Color
Universal Design (2008), told apart by colour-blind readers too; those legible on a light and on a dark ground."""

MODES: Final[Mapping[str, Mode]] = {mode.name: mode for mode in _TABLE}
"""The table by name."""

_IN_REPORTS: Final = sorted(
    MODES, key=lambda name: (MODES[name].settings.parameters != "float32", MODES[name].settings.grad_scaler)
)
"""Names in the order of reports, that of the table but for this: float32 parameters come before others, and of those
the modes that need no scaler."""

PRECISION_MODES: Final[Mapping[str, PrecisionConfig]] = {name: mode.settings for name, mode in MODES.items()}
"""The settings of each mode, for Python callers; `precision=NAME` composes to the same."""


def mode_of(arm: str) -> Mode | None:
    """The mode that an arm started from, by the arm's label; None where the table has none of that name.

    >>> mode_of("amp_bf16+cache_enabled=false").name
    'amp_bf16'
    """
    return MODES.get(arm.partition("+")[0])


def report_order(arm: str) -> tuple[int, str]:
    """A sort key of arms: by their modes in the order of reports, those of unknown modes last."""
    mode = mode_of(arm)
    return len(_IN_REPORTS) if mode is None else _IN_REPORTS.index(mode.name), arm


def arm_label(precision: PrecisionConfig) -> str:
    """The canonical name of these settings: the mode, then every field that differs from it; or for a mode of one's
    own, from the defaults.

    >>> arm_label(PrecisionConfig(mode="amp_bf16", autocast=True, dtype="bfloat16", cache_enabled=False))
    'amp_bf16+cache_enabled=false'
    """
    stock = PRECISION_MODES.get(precision.mode, PrecisionConfig(mode=precision.mode))
    changed = differences(precision, stock)
    return "+".join([precision.mode, *(f"{name}={_text(value)}" for name, value in changed.items())])


def differences(precision: PrecisionConfig, stock: PrecisionConfig) -> dict[str, Any]:
    """The fields in which settings differ from `stock`, with their values."""
    values = {one.name: getattr(precision, one.name) for one in fields(precision)}
    return {name: value for name, value in values.items() if value != getattr(stock, name)}


def step_dtypes(precision: PrecisionConfig) -> StepDtypes:
    """The dtypes that settings promise of a step: autocast has its own, all else is in that of the parameters."""
    mode, kept = MODES.get(precision.mode), precision.parameters
    told = {
        "compute": precision.dtype if precision.autocast else kept,
        **dict.fromkeys(("parameters", "gradients", "reduction", "optimizer_state"), kept),
    }
    return StepDtypes(**(told if mode is None else told | dict(mode.dtypes)))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)  # arms that differ must not share a label
    return str(value)
