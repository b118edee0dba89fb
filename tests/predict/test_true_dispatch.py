"""What CUDA's dispatcher saves for backward under autocast, taken from torch itself, is what a prediction saves.

A CUDA build dispatches fake CUDA tensors without a GPU: the true casts, composites and derivatives, with no value.
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


def floats(*shape):
    return torch.randn(shape)


def classes():
    return torch.randint(16, (8,))


def norm_weighted():
    return nn.utils.parametrizations.weight_norm(nn.Linear(16, 4))


FUNCTIONS = {
    "mse_loss": lambda h: F.mse_loss(h, floats(8, 16)),
    "smooth_l1_loss": lambda h: F.smooth_l1_loss(h, floats(8, 16)),
    "huber_loss": lambda h: F.huber_loss(h, floats(8, 16)),
    "cross_entropy": lambda h: F.cross_entropy(h, classes()),
    "label_smoothing": lambda h: F.cross_entropy(h, classes(), label_smoothing=0.1),
    "bce_with_logits": lambda h: F.binary_cross_entropy_with_logits(h, torch.rand(8, 16)),
    "kl_div": lambda h: F.kl_div(F.log_softmax(h, -1), torch.rand(8, 16), reduction="batchmean"),
    "triplet_margin_loss": lambda h: F.triplet_margin_loss(h, floats(8, 16), floats(8, 16)),
    "multi_margin_loss": lambda h: F.multi_margin_loss(h, classes()),
    "cosine_similarity": lambda h: F.cosine_similarity(h, floats(8, 16)),
    "normalize": F.normalize,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "softmax": lambda h: h.softmax(-1),
    "softmax_in_float32": lambda h: F.softmax(h, -1, dtype=torch.float32),
    "logsumexp": lambda h: h.logsumexp(-1),
    "pow": lambda h: h**2,
    "var": lambda h: h.var(-1),
    "cumsum": lambda h: h.cumsum(0),
    "cat": lambda h: torch.cat([h, floats(8, 16)]),
    "stack": lambda h: torch.stack([h, floats(8, 16)]),
    "einsum": lambda h: torch.einsum("ij,kj->ik", h, floats(8, 16)),
    "mv": lambda h: torch.mv(h, floats(16)),
    "addcmul": lambda h: torch.addcmul(floats(8, 16), h, h),
    "cdist": lambda h: torch.cdist(h, floats(8, 16)),
    "dropout": lambda h: F.dropout(h, 0.1),
    "interpolate": lambda h: F.interpolate(h[None, None], scale_factor=2, mode="bilinear"),
    "grid_sample": lambda h: F.grid_sample(h[None, None], floats(1, 4, 4, 2), align_corners=False),
    "max_pool3d": lambda h: F.max_pool3d(h.view(1, 1, 8, 4, 4), 2),
    "reflect": lambda h: F.pad(h[None], (1, 1), mode="reflect"),
    "RMSNorm": lambda h: nn.RMSNorm(16)(h),
    "LayerNorm": lambda h: nn.LayerNorm(16)(h),
    "GroupNorm": lambda h: nn.GroupNorm(4, 16)(h),
    "BatchNorm1d": lambda h: nn.BatchNorm1d(16)(h),
    "weight_norm": lambda h: norm_weighted()(h),
    "Bilinear": lambda h: nn.Bilinear(16, 16, 4)(h, floats(8, 16)),
    "Conv2d": lambda h: nn.Conv2d(1, 4, 3)(h[None, None]),
    "Conv1d_same": lambda h: nn.Conv1d(1, 4, 3, padding="same")(h[:, None]),
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
    return Counter((one.dtype, one.untyped_storage().nbytes()) for one in found.values()), result.dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of torch's kernels about these small inputs
def test_a_prediction_saves_what_cuda_saves(name, dtype):
    with FakeTensorMode(allow_non_fake_inputs=True):
        truth = saved(FUNCTIONS[name], "cuda", dtype)
    with FakeDevice(TargetDevice("cuda"))():
        assert saved(FUNCTIONS[name], "cpu", dtype) == truth
