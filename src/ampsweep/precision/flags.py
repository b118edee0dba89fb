"""Torch's process-wide switches that let float32 matmuls and convolutions run in TF32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

_BACKENDS: Final[Any] = torch.backends  # its switches are properties that type checkers do not see


@contextmanager
def fp32_arithmetic(*, tf32: bool) -> Iterator[None]:
    """Let float32 matmuls and convolutions run in TF32 within the context, or never; on leaving restore the switches.

    cuDNN's TF32 is on by default, so a baseline that sets nothing is not float32 for convolutions. torch has older and
    newer switches. Reading an older one, as libraries still do, raises if the two disagree
    (https://pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32"). So the older ones are set, which sets most of
    the newer ones, and then those newer ones that would still follow an inherited value
    (`torch.backends.fp32_precision`).
    """
    cudnn, mkldnn = _BACKENDS.cudnn, _BACKENDS.mkldnn
    newer = (_BACKENDS.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    before = [switch.fp32_precision for switch in newer]
    matmul, convolution_tf32 = _matmul_precision(), cudnn.conv.fp32_precision == "tf32"
    _set_older("high" if tf32 else "highest", tf32)
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32" if tf32 else "ieee"
    mkldnn.conv.fp32_precision = mkldnn.rnn.fp32_precision = "ieee"
    try:
        yield
    finally:
        _set_older(matmul, convolution_tf32)
        for switch, value in zip(newer, before, strict=True):
            switch.fp32_precision = value


def _set_older(matmul: str, convolution_tf32: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    _BACKENDS.cudnn.allow_tf32 = convolution_tf32


def _matmul_precision() -> str:
    """The older matmul switch, derived from the newer one: reading it directly would raise if the two disagree."""
    if _BACKENDS.cuda.matmul.fp32_precision != "tf32":
        return "highest"
    return "medium" if _BACKENDS.mkldnn.matmul.fp32_precision == "bf16" else "high"
