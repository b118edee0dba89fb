"""Operators that lose more in low precision than it explains, as users write them."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from planted import Planted, around

WIDTH = 64


@torch.library.custom_op("planted::row_sums", mutates_args=())
def row_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums of rows, added up one by one in the dtype of the input, as in a kernel without an accumulator."""
    total = torch.zeros_like(x[..., 0])
    for column in x.unbind(-1):
        total = total + column
    return total


row_sums.register_autograd(
    lambda ctx, grad: grad.unsqueeze(-1).expand(ctx.shape),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "shape", inputs[0].shape),
)


def sum_without_accumulator(self, x):
    long = (1 + x / 10).repeat(1, 64)
    return x + row_sums(long).unsqueeze(-1) / long.shape[-1]


@torch.library.custom_op("planted::fast_exp", mutates_args=())
def schraudolph_exp(x: torch.Tensor) -> torch.Tensor:
    """Schraudolph's approximation in half precision, which is 4 % off; exact in float32."""
    if x.dtype == torch.float32:
        return x.exp()
    return ((x.float() * (2**23 / math.log(2)) + 1064866805.0).to(torch.int32).view(torch.float32)).to(x.dtype)


schraudolph_exp.register_autograd(
    lambda ctx, grad: grad * ctx.output, setup_context=lambda ctx, inputs, output: setattr(ctx, "output", output)
)


def fast_exp(self, x):
    return x * schraudolph_exp(-self.layers[0](x).abs())


def one_pass_variance(self, x):
    y = self.layers[0](x) + 12
    mean = y.mean(-1, keepdim=True)
    variance = (y * y).mean(-1, keepdim=True) - mean * mean
    return (y - mean) * torch.rsqrt(variance.abs() + 1e-3)


def half_positions(self, x):
    x = x.to(torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype)
    positions = torch.arange(4096 - len(x), 4096, device=x.device).to(x.dtype)
    return x * (positions[:, None] * torch.ones(WIDTH, dtype=x.dtype)).sin()


class Int8Activations(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.dtype == torch.float32:
            return x.clone()
        step = x.abs().amax() / 7
        return (x / step).round() * step

    @staticmethod
    def backward(ctx, grad):
        return grad.clone()


def quantized_path(self, x):
    return Int8Activations.apply(self.layers[0](x))


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
    _case("no accumulator", net("sum_without_accumulator"), "unexplained_error", "inner", "planted.row_sums"),
    _case("fast path of a kernel", net("fast_exp"), "unexplained_error", "inner", "planted.fast_exp"),
    _case("one-pass variance", net("one_pass_variance"), "no_digits_left", "inner"),
    _case("positions in half precision", net("half_positions"), "no_digits_left", "inner"),
    _case("quantized path", net("quantized_path"), "unexplained_error", "inner"),
    _case("large phase", net("large_phase"), "no_digits_left", "inner", "aten.sin"),
)
