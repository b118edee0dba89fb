"""What people call a precision, in the words of frameworks and labels, as modes of the table."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Final

from ampsweep.config.modes import MODES, Mode, mode_of
from ampsweep.config.schema import PrecisionConfig

_WORDS: Final = {"amp": ("{}", "{}-mixed", "{}-amp", "amp-{}"), "pure": ("{}-true", "{}-pure", "pure-{}")}
_NAMES: Final = {"fp16": ("16", "fp16", "float16"), "bf16": ("bf16", "bfloat16")}

ANY_HALF: Final = ("amp", "native-amp")
"""Words for autocast that leave its dtype open: what is proved to be bfloat16 was asked for, too."""
_NO_HALF: Final = ("none", "no amp", "no fp16", "no bf16", "no fp16 no bf16", "no bf16 no fp16")
"""Labels of arms that stand for float32 beside others, and claim nothing alone."""

_MODE_OF: Final = (
    dict.fromkeys(("32", "32-true", "fp32", "fp32-true", "float32", "no", "full"), "fp32")
    | dict.fromkeys(("tf32", "fp32+tf32", "float32+tf32", "32-true+tf32", "no+tf32"), "tf32")
    | dict.fromkeys(ANY_HALF, "amp_fp16")
    | {
        word.format(name): f"{kind}_{half}"
        for kind, words in _WORDS.items()
        for half, names in _NAMES.items()
        for name, word in product(names, words)
    }
)
"""A bare `bf16` is autocast over float32 parameters, as Transformers, Accelerate and torch's examples mean it. Words
without a mode of the table are left out: float64, and 8-bit formats whose kernels are not torch's."""


def claimed_precision(words: str) -> PrecisionConfig | None:
    """The settings that these words claim; None if they are unknown.

    `+tf32` behind other words allows TF32 for what stays in float32.

    >>> claimed_precision("bf16-mixed").mode, claimed_precision("32-true").mode, claimed_precision("64-true")
    ('amp_bf16', 'fp32', None)
    >>> claimed_precision("fp16+tf32").tf32, claimed_precision("amp_bf16+cache_enabled=false").mode
    (True, 'amp_bf16')
    """
    plain = words.strip().lower().removeprefix("torch.").replace("_", "-")
    for word, tf32 in ((plain, False), (plain.removesuffix("+tf32"), True)):
        if word in _MODE_OF:
            settings = MODES[_MODE_OF[word]].settings
            return replace(settings, tf32=settings.tf32 or tf32)
    return None if (mode := mode_of(words.strip())) is None else mode.settings


def named_mode(arm: str) -> Mode | None:
    """The mode that an arm's label stands for among others; None if it is unknown."""
    claim = claimed_precision("fp32" if arm.lower() in _NO_HALF else arm)
    return None if claim is None else MODES.get(claim.mode)


def float32_arm(arms: Iterable[str]) -> str | None:
    """The first of the labels that stands for float32."""
    return next((arm for arm in arms if named_mode(arm) == MODES["fp32"]), None)
