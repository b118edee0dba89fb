"""The changes that mend a finding, as overrides and as lines of Python."""

from collections.abc import Mapping, Sequence
from typing import Final

from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.loss.culprits import CulpritCalls

_CODE: Final = {
    "mask_overflow": "scores.masked_fill(mask, torch.finfo(scores.dtype).min)",
    "exp_overflow": "torch.exp(x - x.amax(dim=-1, keepdim=True))",
    "long_sum": "x.sum(dim, dtype=torch.float32)",
    "log_of_zero": "torch.nn.functional.logsigmoid(logits)  # of a softmax: log_softmax",
    "refused_loss": "torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)",
    "rounded_probability": "torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)",
    "eps_vanishes": "eps = torch.finfo(x.dtype).tiny",
}
"""By kind, the line that does without what float16 cannot hold; the names stand for the user's own."""


def kept_override(precision: PrecisionConfig, modules: Sequence[str]) -> str:
    """The override that keeps modules in float32, beside those that are already."""
    return f"precision.fp32_modules=[{','.join([*precision.fp32_modules, *modules])}]"


def code_for(kind: str, evidence: Mapping[str, object], calls: CulpritCalls | None) -> str | None:
    """The line of Python that mends a finding; None where only an override does."""
    if (code := _CODE.get(kind)) is not None and evidence.get("takes_shift", True):
        return code
    if calls is None:
        return None
    return "x = x.float()" if len(calls.calls) == 1 else "with torch.autocast(x.device.type, enabled=False): ..."
