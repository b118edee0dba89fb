"""Losses in full precision."""

import torch
from torch import Tensor


def at_least_float32(output: Tensor) -> Tensor:
    """The output, in float32 where the model computes in half precision.

    Losses are sums over many values, and bfloat16 would round the result to 3 digits, coarser than the gaps that a
    comparison looks for. Under autocast torch's own losses do the same.
    """
    if output.dtype == torch.float32:  # the usual case, in every step
        return output
    return output.to(torch.promote_types(output.dtype, torch.float32))
