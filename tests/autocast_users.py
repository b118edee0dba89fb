"""Models whose own code uses autocast: custom functions of both kinds, decorators, and regions without it.

`ON_CUDA` and `HERE` are the same, each with its type of device. Import them as the suite imports the user's modules.
"""

from types import SimpleNamespace

import torch
from torch import nn

SEEN = []  # the dtypes of results, by place, of all forward and backward passes


def saw(place, tensor):
    SEEN.append((place, tensor.dtype))
    return tensor


def product(device_type, place, **options):
    """A matrix product in the dtype of autocast, or of `cast_inputs`."""

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, **options)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return saw(place, a.mm(b))

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            return saw(f"{place}, backward", gradient.mm(b.t())), a.t().mm(gradient)

    return Product


def modules(device_type):
    """A model for the digits for each way to use autocast."""

    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 32)
            self.weight = nn.Parameter(torch.empty(32, 10).uniform_(-0.1, 0.1))

    class WithAutocastable(Weighted):
        kind = product(device_type, "autocastable")

        def forward(self, images):
            return self.kind.apply(self.first(images.flatten(1)), self.weight)

    class WithFloat32(WithAutocastable):
        kind = product(device_type, "float32", cast_inputs=torch.float32)

    class Decorated(Weighted):
        @torch.autocast(device_type, dtype=torch.bfloat16)
        def forward(self, images):
            return saw("decorated", self.first(images.flatten(1))) @ self.weight

    class DecoratedOff(Weighted):
        @torch.amp.autocast(device_type=device_type, enabled=False)
        def forward(self, images):
            return saw("decorated, off", self.first(images.flatten(1))) @ self.weight

    class Region(Weighted):
        def forward(self, images):
            hidden = saw("before", self.first(images.flatten(1)))
            with torch.autocast(device_type, enabled=False):
                outputs = saw("region", hidden.float() @ self.weight)
            with torch.autocast(device_type, dtype=torch.float16):
                return saw("again", outputs @ torch.eye(10, device=outputs.device))

    return {kind.__name__: kind for kind in (WithAutocastable, WithFloat32, Decorated, DecoratedOff, Region)}


HERE, ON_CUDA = (SimpleNamespace(**modules(device_type)) for device_type in ("cpu", "cuda"))
