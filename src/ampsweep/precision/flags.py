"""Torch's process-wide switches for float32 matmuls and convolutions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

_BACKENDS: Final[Any] = torch.backends  # its switches are properties that type checkers do not see


@contextmanager
def fp32_arithmetic(*, matmul: str, tf32: bool, cudnn_benchmark: bool | None = None) -> Iterator[None]:
    """Set how float32 matmuls and convolutions are computed inside the context, and restore the switches on leaving.

    cuDNN's TF32 is on by default. torch has older and newer switches; reading an older switch, as libraries still do,
    raises if the two disagree (https://pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32"). So the older
    switches are set, and with them most newer ones, and then the newer ones that would still follow an inherited value.

    Args:
        matmul: highest, high or medium, as for `torch.set_float32_matmul_precision`. On CUDA the last two are TF32; in
            oneDNN they are TF32 and bfloat16 where it has such kernels.
        tf32: run convolutions and recurrent layers in TF32 on CUDA.
        cudnn_benchmark: let cuDNN try its algorithms for each new shape; None leaves the switch alone.
    """
    cudnn, mkldnn = _BACKENDS.cudnn, _BACKENDS.mkldnn
    newer = (_BACKENDS.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    before = [switch.fp32_precision for switch in newer]
    # The older switches, derived from the newer ones: reading them would raise if the two disagree.
    rounded = "medium" if mkldnn.matmul.fp32_precision == "bf16" else "high"
    matmul_before = rounded if _BACKENDS.cuda.matmul.fp32_precision == "tf32" else "highest"
    convolution_tf32, benchmark_before = cudnn.conv.fp32_precision == "tf32", cudnn.benchmark
    torch.set_float32_matmul_precision(matmul)
    cudnn.allow_tf32 = tf32
    cudnn.benchmark = benchmark_before if cudnn_benchmark is None else cudnn_benchmark
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32" if tf32 else "ieee"
    mkldnn.conv.fp32_precision = mkldnn.rnn.fp32_precision = "ieee"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul_before)
        cudnn.allow_tf32 = convolution_tf32
        cudnn.benchmark = benchmark_before
        for switch, value in zip(newer, before, strict=True):
            switch.fp32_precision = value


def float32_settings(device: torch.device) -> dict[str, Any]:
    """torch's current switches for float32 on a device as fields of `PrecisionConfig`: `tf32` and `fp32_matmul`."""
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    switch = _BACKENDS.mkldnn.matmul.fp32_precision if device.type == "cpu" else _BACKENDS.cuda.matmul.fp32_precision
    tf32 = has_tf32 and _BACKENDS.cudnn.conv.fp32_precision == "tf32"
    matmul = "medium" if switch == "bf16" else "high" if switch == "tf32" and has_tf32 else "highest"
    return {"tf32": tf32, "fp32_matmul": None if matmul == ("high" if tf32 else "highest") else matmul}
