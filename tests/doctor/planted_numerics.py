"""Operators that lose more in low precision than it explains, as users write them."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from planted import Planted, around

WIDTH = 64


@torch.library.custom_op("planted::fast_exp", mutates_args=())
def schraudolph_exp(x: torch.Tensor, shift: float) -> torch.Tensor:
    """Schraudolph's approximation in half precision, which is 4 % off, with a shift more; exact in float32."""
    if x.dtype == torch.float32:
        return x.exp()
    bits = x.float() * (2**23 / math.log(2)) + 1064866805.0 + shift * 2**23
    return bits.to(torch.int32).view(torch.float32).to(x.dtype)


schraudolph_exp.register_autograd(
    lambda ctx, grad: (grad * ctx.output, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "output", output),
)


def fast_exp(self, x, shift=0.0):
    return x * schraudolph_exp(-self.layers[0](x).abs(), shift)


crude_exp = partial(fast_exp, shift=0.4)


def one_pass_variance(self, x):
    y = self.layers[0](x) + 12
    mean = y.mean(-1, keepdim=True)
    variance = (y * y).mean(-1, keepdim=True) - mean * mean
    return (y - mean) * torch.rsqrt(variance.abs() + 1e-3)


def quantized_path(self, x):
    y = self.layers[0](x)
    if y.dtype == torch.float32:
        return y
    step = y.detach().abs().amax() / 7
    return y + ((y / step).round() * step - y).detach()


def large_phase(self, x):
    return x + (self.layers[0](x + 1) * 3000).sin()


def normed_twice(self, x):
    return F.layer_norm(F.layer_norm(x, (WIDTH,)), (WIDTH,))


def sorted_rows(self, x):
    """Sorts rows by a score, which rounding brings into another order, and puts them back."""
    order = self.layers[0](x)[:, 0].argsort()
    return self.layers[1](x[order])[order.argsort()]


def net(inner: str, *more: str, precision: str = "amp_bf16", batch_size: int = 32) -> tuple[str, ...]:
    more = (f"precision={precision}", *more)
    return around(f"planted_numerics.{inner}", *more, sizes=(WIDTH, WIDTH, 1), batch_size=batch_size)


_case = partial(Planted, "numerics")

PLANTED = (
    _case("fast path of a kernel", net("fast_exp"), "large_error", "inner", "planted.fast_exp"),
    _case("one-pass variance", net("one_pass_variance"), "large_error", "inner"),
    _case("quantized path", net("quantized_path"), "large_error", "inner"),
    _case("large phase", net("large_phase"), "large_error", "inner", "aten.sin"),
)
