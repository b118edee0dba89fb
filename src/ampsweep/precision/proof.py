"""Proof that a run computed as its precision mode promises: by its arithmetic, its flags and the dtypes of a step."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampsweep.config.modes import step_dtypes
from ampsweep.config.schema import PrecisionConfig
from ampsweep.record.parts import ModeProof

Arithmetic = Literal["exact", "rounded"]

_LOW_BIT: Final = 2.0**-12
"""The last bit of 1 + 2**-12: float32 keeps 23 bits behind the binary point, TF32 and float16 keep 10, bfloat16 7."""

_ROUNDING_FLAGS: Final = ("tf32", "bf16")
"""Values of torch's `fp32_precision` switches that let float32 operands lose bits."""

_WORK: Final = "of the matmul and convolution operations ran in"

_CONVOLUTIONS: Final = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def has_convolutions(model: nn.Module) -> bool:
    """Tell whether a model has a convolution among its layers."""
    return any(isinstance(module, _CONVOLUTIONS) for module in model.modules())


def prove_arithmetic(
    device: torch.device,
    *,
    convolutions: bool,
    matmul: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    conv2d: Callable[..., Tensor] = F.conv2d,
) -> dict[str, str]:
    """Test how float32 matmuls and convolutions on `device` compute now: 1 + 2**-12 times 1 gives itself (exact) or 1.

    Flags are no proof: `NVIDIA_TF32_OVERRIDE` and `TORCH_ALLOW_TF32_CUBLAS_OVERRIDE` bypass them, and so can a library.
    Call it with the mode's flags set and outside autocast; it waits for the device, once.

    Args:
        convolutions: test convolutions too; false for a model without any, which then need not load cuDNN.
        matmul: the function that multiplies two float32 matrices.
        conv2d: the function that convolves, with the signature of `torch.nn.functional.conv2d`.
    """
    # cuBLAS takes TF32 kernels for large matrices only: from a side of 512 on, with CUDA 12.8 on an H100
    # (torch/_inductor/template_heuristics/triton.py). Elsewhere a small one does, and costs a millisecond.
    side = 1024 if device.type == "cuda" else 256
    matrix = torch.full((side, side), 1 + _LOW_BIT, dtype=torch.float32, device=device)
    identity = torch.eye(side, dtype=torch.float32, device=device)
    proof: dict[str, str] = {"matmul": _compare(matmul(matrix, identity), matrix)}
    if convolutions:
        channels = side // 8
        image = torch.full((4, channels, 32, 32), 1 + _LOW_BIT, dtype=torch.float32, device=device)
        kernel = torch.zeros((channels, channels, 3, 3), dtype=torch.float32, device=device)
        kernel[:, :, 1, 1] = torch.eye(channels, device=device)
        proof["convolution"] = _compare(conv2d(image, kernel, padding=1), image)
    return proof


def _compare(result: Tensor, exact: Tensor) -> Arithmetic:
    """Tell exact from rounded results; transforms (Winograd, FFT) change float32's last bits, not those TF32 lacks."""
    return "exact" if float((result - exact).abs().max()) < _LOW_BIT / 2 else "rounded"


def contradictions(precision: PrecisionConfig, proof: ModeProof) -> list[str]:
    """Sentences on the facts in the `proof` of a run that contradict its settings; absent facts contradict nothing.

    Args:
        precision: the settings; their fields count, not the mode they started from.
        proof: the evidence, with `fp32_arithmetic` as `prove_arithmetic` returns it.
    """
    found = [*_census_contradictions(precision, proof), *_fp32_module_contradictions(proof)]
    if precision.parameters == "float32":  # otherwise nothing is promised of float32 arithmetic
        found += _arithmetic_contradictions(precision.tf32, proof.fp32_arithmetic or {})
        found += _flag_contradictions(precision.tf32, proof.flags or {})
    return found


def _arithmetic_contradictions(tf32: bool, arithmetic: Mapping[str, str]) -> Iterator[str]:
    rounded = [f"a {kind}" for kind, how in arithmetic.items() if how == "rounded"]
    if rounded and not tf32:
        yield f"{' and '.join(rounded)} in float32 lost bits, as TF32 does, although precision.tf32=false"
    # Not each of them: cuDNN may prefer a float32 kernel where TF32 is allowed.
    if arithmetic and not rounded and tf32:
        yield f"a {' and a '.join(arithmetic)} in float32 kept every bit, although precision.tf32=true"


def _flag_contradictions(tf32: bool, flags: Mapping[str, Any]) -> Iterator[str]:
    switches = {name: value for name, value in flags.items() if name.endswith("fp32_precision")}
    wrong = [f"{name} is {value}" for name, value in switches.items() if (value in _ROUNDING_FLAGS) != tf32]
    if wrong:
        yield f"{', '.join(wrong)} during training, although precision.tf32={str(tf32).lower()}"


def _census_contradictions(precision: PrecisionConfig, proof: ModeProof) -> Iterator[str]:
    """Sentences on the dtypes of operations that contradict the mode.

    A 16-bit mode promises most of the operations, not all: torch's unfused attention computes in float32 inside. A
    model without matmuls and convolutions contradicts nothing. Where modules are kept in float32 the forward pass of
    the others is judged: backward computes in the dtypes that forward did.
    """
    promised, flops = step_dtypes(precision).compute, proof.flops or {}
    if proof.fp32_module_flops is not None:
        apart = proof.fp32_module_flops
        flops = {dtype: count - apart.get(dtype, 0) for dtype, count in (proof.forward_flops or {}).items()}
    total = sum(flops.values())
    if total == 0:
        return
    if promised == "float32":
        for dtype in ("bfloat16", "float16"):
            if flops.get(dtype, 0) > 0:
                yield f"{_percent(flops[dtype], total)} {_WORK} {dtype}, although the mode computes in float32"
    elif flops.get(promised, 0) <= total / 2:
        yield f"only {_percent(flops.get(promised, 0), total)} {_WORK} {promised}, in which the mode computes"


def _fp32_module_contradictions(proof: ModeProof) -> Iterator[str]:
    """Sentences on modules that `precision.fp32_modules` names and that did not compute in float32."""
    flops = proof.fp32_module_flops or {}
    total = sum(flops.values())
    for dtype in ("bfloat16", "float16"):
        if flops.get(dtype, 0) > 0:
            share = _percent(flops[dtype], total)
            yield f"{share} {_WORK} {dtype} within precision.fp32_modules, which compute in float32"
    for pattern in proof.idle_fp32_modules or ():
        yield f"no module of precision.fp32_modules=[{pattern}] was called: what it holds is computed elsewhere"


def _percent(part: int, total: int) -> str:
    percent = 100 * part / total
    return f"{percent:.0f}%" if percent >= 1 else f"{percent:.1g}%"
