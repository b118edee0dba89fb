"""The process-wide switches that decide whether float32 arithmetic is float32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.backends import cuda, cudnn, mkldnn


@contextmanager
def fp32_arithmetic(*, tf32: bool) -> Iterator[None]:
    """Within the context float32 matmuls and convolutions run in TF32, or never do; what was set is restored.

    cuDNN's TF32 is on by default, so a baseline that sets nothing is not float32 for convolutions. The setters used
    here keep torch's older and newer switches in agreement; setting only the newer ones makes reading the older ones
    raise (https://pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32"), which libraries still do.
    """
    matmul, convolution = _matmul_precision(), cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    _set("high" if tf32 else "highest", tf32)
    try:
        yield
    finally:
        _set(matmul, convolution)


def _set(matmul: str, convolution_tf32: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    cudnn.allow_tf32 = convolution_tf32


def _matmul_precision() -> str:
    if mkldnn.matmul.fp32_precision == "bf16":  # type: ignore[attr-defined]
        return "medium"
    return "high" if cuda.matmul.fp32_precision == "tf32" else "highest"
