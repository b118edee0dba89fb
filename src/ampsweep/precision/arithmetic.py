"""Measurement of the mantissa bits that a device's float32 matmuls and convolutions keep."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampsweep.config.modes import fp32_matmul
from ampsweep.config.schema import PrecisionConfig
from ampsweep.precision.flags import fp32_arithmetic

Arithmetic = Literal["exact", "rounded"]

FLOAT32_BITS: Final = 23
"""Mantissa bits of a float32; TF32 and float16 have 10, bfloat16 7, a sum of two bfloat16 numbers 15 or 16."""

_EXACT_BITS: Final = {"matmul": 18, "convolution": 12}
"""Fewest bits of exact arithmetic. A product with the identity has no rounding errors in its sums; a convolution's
transforms (Winograd, FFT) change float32's last bits, but not those that TF32 lacks."""


_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def kept_bits(device: torch.device, model: nn.Module | None = None) -> dict[str, int]:
    """Measure how many mantissa bits float32 matmuls, and the convolutions of a `model` that has any, keep on `device`.

    Numbers of 1 to 23 bits are multiplied by 1; those that come back unchanged were not rounded. Flags are no proof:
    `NVIDIA_TF32_OVERRIDE`, `TORCH_ALLOW_TF32_CUBLAS_OVERRIDE` and libraries bypass them. Call this with the mode's
    flags set and outside autocast; it waits for the device once for each kind.
    """
    # cuBLAS uses TF32 kernels for large matrices only: from a side of 512 on, with CUDA 12.8 on an H100
    # (torch/_inductor/template_heuristics/triton.py). Elsewhere a small matrix will do, and takes a millisecond.
    side = 1024 if device.type == "cuda" else 256
    matrix = _numbers(side, device)[:, None].repeat(1, side)
    found = {"matmul": _bits(torch.matmul(matrix, torch.eye(side, device=device)), matrix)}
    if model is not None and any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
        channels = side // 8
        image = _numbers(channels, device)[None, :, None, None].repeat(4, 1, 32, 32)
        kernel = torch.zeros((channels, channels, 3, 3), device=device)
        kernel[:, :, 1, 1] = torch.eye(channels, device=device)
        found["convolution"] = _bits(F.conv2d(image, kernel, padding=1).transpose(0, 1), image.transpose(0, 1))
    return found


def exact_or_rounded(bits: Mapping[str, int]) -> dict[str, Arithmetic]:
    """Classify each kind of arithmetic by the mantissa bits that it keeps."""
    return {kind: "exact" if kept >= _EXACT_BITS[kind] else "rounded" for kind, kept in bits.items()}


@cache
def matmul_bits(device: torch.device, setting: str) -> int:
    """Measure the bits that float32 matmuls on a device keep under a setting of `precision.fp32_matmul`."""
    with fp32_arithmetic(matmul=setting, tf32=False):
        return kept_bits(device)["matmul"]


def flops_by_arithmetic(
    precision: PrecisionConfig, flops: Mapping[str, int], in_convolutions: Mapping[str, int] | None
) -> dict[str, int]:
    """Count operations by their arithmetic under these settings: float32 ones may run in TF32 or bfloat16.

    Args:
        flops: operations by the dtype of their operands.
        in_convolutions: the part of them in convolutions; None if unknown, and then float32 operations are `unknown`
            where matmuls and convolutions differ.
    """
    found = dict(flops)
    in_float32 = found.pop("float32", 0)
    matmul = {"highest": "float32", "high": "tf32", "medium": "bfloat16"}[fp32_matmul(precision)]
    convolution = "tf32" if precision.tf32 else "float32"
    if in_convolutions is None:
        counts = {matmul if matmul == convolution else "unknown": in_float32}
    else:
        convolved = in_convolutions.get("float32", 0)
        counts = Counter({matmul: in_float32 - convolved})
        counts[convolution] += convolved
    return found | {kind: found.get(kind, 0) + count for kind, count in counts.items() if count}


def _numbers(count: int, device: torch.device) -> Tensor:
    """The numbers 1.1, 1.01, 1.101, 1.0101, ... (binary), of 1 to 23 mantissa bits, repeated.

    Set bits alternate because a sum of two bfloat16 numbers can hold isolated bits, such as 1 + 2**-23.
    """
    numbers = [1 + sum(2.0**-place for place in range(bits, 0, -2)) for bits in range(1, FLOAT32_BITS + 1)]
    tensor = torch.tensor(numbers, dtype=torch.float32, device=device)
    return tensor.repeat(count // FLOAT32_BITS + 1)[:count]


def _bits(result: Tensor, exact: Tensor) -> int:
    """The mantissa bits up to which all numbers came back with an error below half of their last bit.

    Both tensors are (number, ...), with the numbers of `_numbers`.
    """
    errors: list[float] = (result - exact).abs().flatten(1).amax(dim=1).tolist()
    lost = {at % FLOAT32_BITS + 1 for at, error in enumerate(errors) if not error < 2.0 ** -(at % FLOAT32_BITS + 2)}
    return min(lost, default=FLOAT32_BITS + 1) - 1
