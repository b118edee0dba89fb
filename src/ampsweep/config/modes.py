"""The named precision modes, for Python callers; `conf/precision/*.yaml` holds the same values for Hydra."""

from dataclasses import fields
from typing import Any, Final

from ampsweep.config.schema import PrecisionConfig

PRECISION_MODES: Final[dict[str, PrecisionConfig]] = {
    config.mode: config
    for config in (
        PrecisionConfig(mode="fp32"),
        PrecisionConfig(mode="tf32", tf32=True),
        PrecisionConfig(mode="amp_fp16", autocast=True, dtype="float16", grad_scaler=True),
        PrecisionConfig(mode="amp_bf16", autocast=True, dtype="bfloat16"),
        PrecisionConfig(mode="pure_bf16", parameters="bfloat16", dtype="bfloat16"),
        PrecisionConfig(mode="pure_fp16", parameters="float16", dtype="float16"),
    )
}


def arm_label(precision: PrecisionConfig) -> str:
    """The canonical name of these settings: the mode, then every field that differs from it; or for a mode of one's
    own, from the defaults.

    >>> arm_label(PrecisionConfig(mode="amp_bf16", autocast=True, dtype="bfloat16", cache_enabled=False))
    'amp_bf16+cache_enabled=false'
    """
    stock = PRECISION_MODES.get(precision.mode, PrecisionConfig(mode=precision.mode))
    changed = [f.name for f in fields(precision) if getattr(precision, f.name) != getattr(stock, f.name)]
    return "+".join([precision.mode, *(f"{name}={_text(getattr(precision, name))}" for name in changed)])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)  # arms that differ must not share a label
    return str(value)
