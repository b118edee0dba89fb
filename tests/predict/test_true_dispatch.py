"""What CUDA's dispatcher saves for backward under autocast is what a prediction saves.

A CUDA build of torch dispatches fake CUDA tensors without a GPU: the true casts, composites and derivatives.
"""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.target_device import TargetDevice

pytestmark = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs a CUDA build of torch, but no GPU")


floats = torch.randn
FUNCTIONS = {
    "mse_loss": lambda h: F.mse_loss(h, floats(8, 16)),
    "cross_entropy": lambda h: F.cross_entropy(h, torch.randint(16, (8,))),
    "bce_with_logits": lambda h: F.binary_cross_entropy_with_logits(h, torch.rand(8, 16)),
    "softmax": lambda h: h.softmax(-1),
    "softmax_in_float32": lambda h: F.softmax(h, -1, dtype=torch.float32),
    "pow": lambda h: h**2,
    "var": lambda h: h.var(-1),
    "cumsum": lambda h: h.cumsum(0),
    "cat": lambda h: torch.cat([h, floats(8, 16)]),
    "einsum": lambda h: torch.einsum("ij,kj->ik", h, floats(8, 16)),
    "cdist": lambda h: torch.cdist(h, floats(8, 16)),
    "dropout": lambda h: F.dropout(h, 0.1),
    "RMSNorm": lambda h: nn.RMSNorm(16)(h),
    "LayerNorm": lambda h: nn.LayerNorm(16)(h),
    "GroupNorm": lambda h: nn.GroupNorm(4, 16)(h),
    "BatchNorm1d": lambda h: nn.BatchNorm1d(16)(h),
    "weight_norm": lambda h: nn.utils.parametrizations.weight_norm(nn.Linear(16, 4))(h),
    "ConvTranspose2d": lambda h: nn.ConvTranspose2d(1, 4, 3)(h[None, None]),
    "MultiheadAttention": lambda h: nn.MultiheadAttention(16, 4)(h, h, h)[0],
    "RNNCell": lambda h: nn.RNNCell(16, 8)(h),
}


def saved(function, device_type, dtype):
    """dtypes and bytes of the storages that a linear layer and the function after it save, and the result's dtype."""
    found = {}

    def keep(tensor):
        found[tensor.untyped_storage()._cdata] = tensor
        return tensor

    # torch.autocast("cuda") is off where there is no GPU; this is what it does.
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, dtype)
    torch.autocast_increment_nesting()
    try:
        with torch.device(device_type), torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
            result = function(nn.Linear(16, 16)(floats(8, 16)))
    finally:
        torch.set_autocast_enabled(device_type, False)
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
    return Counter((tensor.dtype, tensor.untyped_storage().nbytes()) for tensor in found.values()), result.dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of torch's kernels about these small inputs
def test_a_prediction_saves_what_cuda_saves(name, dtype):
    with FakeTensorMode(allow_non_fake_inputs=True):
        truth = saved(FUNCTIONS[name], "cuda", dtype)
    with FakeDevice(TargetDevice("cuda"))():
        assert saved(FUNCTIONS[name], "cpu", dtype) == truth
