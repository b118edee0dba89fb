"""Measured arithmetic of a device: how many bits its float32 matmuls and convolutions keep."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
"""Bits of a float32 behind the binary point; TF32 and float16 have 10, bfloat16 7, a sum of two bfloat16 15 or 16."""

_FEWEST_EXACT: Final = {"matmul": 18}
"""Bits from which a result counts as exact: an identity leaves a product's sums without error in whatever order."""
_FEWEST_EXACT_ELSEWHERE: Final = 12
"""The same of the others: transforms (Winograd, FFT) change float32's last bits, not those that TF32 lacks."""

_CONVOLUTIONS: Final = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def kinds_in(model: nn.Module) -> Iterator[str]:
    """The kinds of arithmetic, besides matmuls, that the layers of a model ask for: `convolution`."""
    if any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
        yield "convolution"


def kept_bits(
    device: torch.device,
    *others: str,
    matmul: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    conv2d: Callable[..., Tensor] = F.conv2d,
) -> dict[str, int]:
    """Measure how many bits behind the binary point float32 matmuls, and others, keep on `device` now.

    Numbers of more and more bits are multiplied by 1; those that come back unchanged were not rounded. Flags are no
    proof: `NVIDIA_TF32_OVERRIDE`, `TORCH_ALLOW_TF32_CUBLAS_OVERRIDE` and libraries bypass them. Call it with the mode's
    flags set and outside autocast; it waits for the device, once for each kind.

    Args:
        others: further kinds of `kinds_in`; what is not named need not load its library.
        matmul: the function that multiplies two float32 matrices.
        conv2d: the function that convolves, with the signature of `torch.nn.functional.conv2d`.
    """
    # cuBLAS takes TF32 kernels for large matrices only: from a side of 512 on, with CUDA 12.8 on an H100
    # (torch/_inductor/template_heuristics/triton.py). Elsewhere a small one does, and costs a millisecond.
    side = 1024 if device.type == "cuda" else 256
    matrix = _numbers(side, device)[:, None].repeat(1, side)
    found = {"matmul": _bits(matmul(matrix, torch.eye(side, device=device)), matrix)}
    if "convolution" in others:
        channels = side // 8
        image = _numbers(channels, device)[None, :, None, None].repeat(4, 1, 32, 32)
        kernel = torch.zeros((channels, channels, 3, 3), device=device)
        kernel[:, :, 1, 1] = torch.eye(channels, device=device)
        found["convolution"] = _bits(conv2d(image, kernel, padding=1).transpose(0, 1), image.transpose(0, 1))
    return found


def exact_or_rounded(bits: Mapping[str, int]) -> dict[str, Arithmetic]:
    """Tell exact from rounded arithmetic of each kind, by the bits that it keeps."""
    return {
        kind: "exact" if kept >= _FEWEST_EXACT.get(kind, _FEWEST_EXACT_ELSEWHERE) else "rounded"
        for kind, kept in bits.items()
    }


@cache
def matmul_bits(device: torch.device, setting: str) -> int:
    """Bits that float32 matmuls on a device keep under a setting of `precision.fp32_matmul`, by a small product."""
    with fp32_arithmetic(matmul=setting, tf32=False):
        return kept_bits(device)["matmul"]


def flops_by_arithmetic(
    precision: PrecisionConfig, flops: Mapping[str, int], in_convolutions: Mapping[str, int] | None
) -> dict[str, int]:
    """Operations by the arithmetic that these settings compute them in: float32 ones may run in TF32 or bfloat16.

    Args:
        flops: operations by the dtype of their operands.
        in_convolutions: those of convolutions among them; None: not known. Operations of which it decides the
            arithmetic are then `unknown`.
    """
    found = dict(flops)
    in_float32 = found.pop("float32", 0)
    matmul = {"highest": "float32", "high": "tf32", "medium": "bfloat16"}[fp32_matmul(precision)]
    convolution = "tf32" if precision.tf32 else "float32"
    if in_convolutions is None:
        parts = {matmul if matmul == convolution else "unknown": in_float32}
    else:
        convolved = in_convolutions.get("float32", 0)
        parts = Counter({matmul: in_float32 - convolved})
        parts[convolution] += convolved
    for arithmetic, count in parts.items():
        if count:
            found[arithmetic] = found.get(arithmetic, 0) + count
    return found


def _numbers(count: int, device: torch.device) -> Tensor:
    """The numbers 1.1, 1.01, 1.101, 1.0101, ... (binary), of 1 to 23 bits behind the point, over and over.

    Set bits alternate because a sum of two bfloat16 holds numbers of single ones, such as 1 + 2**-23.
    """
    numbers = [1 + sum(2.0**-place for place in range(bits, 0, -2)) for bits in range(1, FLOAT32_BITS + 1)]
    told = torch.tensor(numbers, dtype=torch.float32, device=device)
    return told.repeat(count // FLOAT32_BITS + 1)[:count]


def _bits(result: Tensor, exact: Tensor) -> int:
    """The most bits of numbers that came back, as all shorter ones did: their error is below half of the last bit.

    Both are (number, ...), with the numbers of `_numbers`.
    """
    errors: list[float] = (result - exact).abs().flatten(1).amax(dim=1).tolist()
    lost = {at % FLOAT32_BITS + 1 for at, error in enumerate(errors) if not error < 2.0 ** -(at % FLOAT32_BITS + 2)}
    return min(lost, default=FLOAT32_BITS + 1) - 1
