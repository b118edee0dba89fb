"""Facts in a run's proof that contradict its precision mode: arithmetic, flags, and dtypes of the traced step."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from ampsweep.config.modes import fp32_matmul, step_dtypes
from ampsweep.config.schema import PrecisionConfig
from ampsweep.records.sections import Float8Proof, ModeProof
from ampsweep.text import listed, percent

_ROUNDING_FLAGS: Final = ("tf32", "bf16")  # values of torch's `fp32_precision` switches that round float32 operands

_BITS: Final = {"high": range(10, 18), "medium": range(10)}
"""Mantissa bits that rounded matmuls may keep: TF32 has 10, three products of bfloat16 16, bfloat16 7, or coarser."""

_WORK: Final = "of the matmul and convolution operations ran in"


def contradictions(precision: PrecisionConfig, proof: ModeProof) -> list[str]:
    """Find the facts that contradict the settings, as sentences; absent facts contradict nothing."""
    found, kept = [*_census_contradictions(precision, proof)], "precision.fp32_modules"
    found += [f"{share} within {kept}, which compute in float32" for share in _narrow(proof.fp32_module_flops or {})]
    for pattern in proof.idle_fp32_modules or ():
        found.append(f"no module of {kept}=[{pattern}] was called: its operations run elsewhere")
    found += _float8_contradictions(proof.float8, proof)
    if precision.parameters == "float32":  # otherwise nothing is promised of float32 arithmetic
        found += [*_arithmetic_contradictions(precision, proof), *_flag_contradictions(precision, proof)]
    return found


def _arithmetic_contradictions(precision: PrecisionConfig, proof: ModeProof) -> Iterator[str]:
    arithmetic = proof.fp32_arithmetic or {}
    for setting in dict.fromkeys(_setting_of(precision, kind) for kind in arithmetic):
        kinds = {kind: how for kind, how in arithmetic.items() if _setting_of(precision, kind) == setting}
        rounded = [f"a {kind}" for kind, how in kinds.items() if how == "rounded"]
        may_round = any(_may_round(precision, kind) for kind in kinds)
        if rounded and not may_round:
            yield f"{' and '.join(rounded)} in float32 lost bits, as TF32 does, although {setting}"
        # Not each of them: cuDNN may prefer a float32 kernel where TF32 is allowed.
        if not rounded and may_round:
            yield f"a {' and a '.join(kinds)} in float32 kept every bit, although {setting}"
    bits, asked = (proof.fp32_bits or {}).get("matmul"), fp32_matmul(precision)
    if bits is not None and arithmetic.get("matmul") == "rounded" and bits not in _BITS.get(asked, (bits,)):
        yield f"a matmul in float32 kept {bits} bits behind the point, although {_setting_of(precision, 'matmul')}"


def _flag_contradictions(precision: PrecisionConfig, proof: ModeProof) -> Iterator[str]:
    wrong: dict[str, list[str]] = {}
    for name, value in (proof.flags or {}).items():
        kind = "matmul" if "matmul" in name else "convolution"
        if name.endswith("fp32_precision") and (value in _ROUNDING_FLAGS) != _may_round(precision, kind):
            wrong.setdefault(_setting_of(precision, kind), []).append(f"{name} is {value}")
    for setting, flags in wrong.items():
        yield f"{', '.join(flags)} during training, although {setting}"


def _may_round(precision: PrecisionConfig, kind: str) -> bool:
    return fp32_matmul(precision) != "highest" if kind == "matmul" else precision.tf32


def _setting_of(precision: PrecisionConfig, kind: str) -> str:
    if kind == "matmul" and precision.fp32_matmul is not None:
        return f"precision.fp32_matmul={precision.fp32_matmul}"
    return f"precision.tf32={str(precision.tf32).lower()}"


def _census_contradictions(precision: PrecisionConfig, proof: ModeProof) -> Iterator[str]:
    """A 16-bit mode promises most operations, since torch's unfused attention computes in float32 inside. Where modules
    compute separately in float32 or float8, only the forward pass of the rest is judged. In compiled code modules
    cannot be separated, except by float8 itself."""
    is_compiled = proof.traced == "compiled"
    is_mixed = precision.fp32_modules or (proof.float8 is not None and proof.float8.emulated)
    if is_compiled and precision.autocast and is_mixed:
        return
    promised, flops = step_dtypes(precision).compute, proof.flops or {}
    if proof.forward_flops is not None:
        layers = () if proof.float8 is None else proof.float8.converted or ()
        apart = Counter(proof.fp32_module_flops or {})
        for layer in layers:
            apart.update(layer.flops)
        flops = {dtype: count - apart[dtype] for dtype, count in proof.forward_flops.items()}
    if promised.startswith("float8_"):
        if is_compiled:
            flops = {dtype: count for dtype, count in flops.items() if not dtype.startswith("float8_")}
        promised = precision.dtype  # the converted layers are judged separately
    total = sum(flops.values())
    if total == 0:
        return
    if promised == "float32":
        yield from (f"{share}, although the mode computes in float32" for share in _narrow(flops))
    elif flops.get(promised, 0) <= total / 2:
        yield f"only {percent(100 * flops.get(promised, 0) / total)} {_WORK} {promised}, in which the mode computes"


def _narrow(flops: Mapping[str, int]) -> Iterator[str]:
    for dtype in ("bfloat16", "float16"):
        if flops.get(dtype, 0) > 0:
            yield f"{percent(100 * flops[dtype] / sum(flops.values()))} {_WORK} {dtype}"


def _float8_contradictions(float8: Float8Proof | None, proof: ModeProof) -> Iterator[str]:
    """Backward multiplies and casts twice as often as forward. Emulated products are proved by their casts."""
    if float8 is None:
        return
    if float8.arithmetic == "exact":
        yield "a product of float8 layers kept a bit that float8 does not have"
    layers = float8.converted or ()
    if proof.traced == "compiled":  # compiled code has no layers
        if layers and not float8.emulated and not _float8_part(proof.flops or {}):
            yield "nothing of the compiled step computed in float8"
        return
    if idle := [layer.name for layer in layers if not layer.flops]:
        yield f"converted to float8 and not called in the traced step: {listed(idle)}"
    if float8.emulated:
        wrong = [layer.name for layer in layers if layer.flops and not layer.casts]
        forward, total = sum(layer.casts for layer in layers), sum((float8.casts or {}).values())
    else:
        wrong = [layer.name for layer in layers if _float8_part(layer.flops) < sum(layer.flops.values())]
        forward, total = sum(_float8_part(layer.flops) for layer in layers), _float8_part(proof.flops or {})
    if wrong:
        yield f"converted to float8 and computed in another dtype: {listed(wrong)}"
    if total < 3 * forward:
        yield "backward of the float8 layers did not compute in float8"


def _float8_part(counts: Mapping[str, int]) -> int:
    return sum(count for dtype, count in counts.items() if dtype.startswith("float8_"))
