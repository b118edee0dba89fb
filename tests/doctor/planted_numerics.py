"""Operators that lose more in low precision than it explains, as users write them."""

import math

import torch
from planted import Planted, around
from torch import nn

WIDTH = 64


class Net(nn.Module):
    """Two layers around an inner module."""

    def __init__(self, inner: str, width: int = WIDTH) -> None:
        super().__init__()
        self.before = nn.Linear(width, width)
        self.inner = globals()[inner]()
        self.after = nn.Linear(width, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(torch.relu(self.after(self.inner(torch.relu(self.before(x))))))


@torch.library.custom_op("planted::row_sums", mutates_args=())
def row_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums of rows, added up one by one in the dtype of the input, as a kernel without an accumulator has it."""
    total = torch.zeros_like(x[..., 0])
    for column in x.unbind(-1):
        total = total + column
    return total


row_sums.register_autograd(
    lambda ctx, grad: grad.unsqueeze(-1).expand(ctx.shape),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "shape", inputs[0].shape),
)


class SumWithoutAccumulator(nn.Module):
    """A custom operator whose kernel adds up a long axis in the dtype of its input."""

    def forward(self, x):
        long = (1 + x / 10).repeat(1, 64)
        return x + row_sums(long).unsqueeze(-1) / long.shape[-1]


@torch.library.custom_op("planted::fast_exp", mutates_args=())
def fast_exp(x: torch.Tensor) -> torch.Tensor:
    """Schraudolph's approximation in half precision, which is 4 % off; exact in float32."""
    if x.dtype == torch.float32:
        return x.exp()
    return ((x.float() * (2**23 / math.log(2)) + 1064866805.0).to(torch.int32).view(torch.float32)).to(x.dtype)


fast_exp.register_autograd(
    lambda ctx, grad: grad * ctx.output,
    setup_context=lambda ctx, inputs, output: setattr(ctx, "output", output),
)


class FastExp(nn.Module):
    """A kernel with a fast path for half precision only."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x * fast_exp(-self.gate(x).abs())


class OnePassVariance(nn.Module):
    """A normalization whose variance is the difference of two large numbers, in the dtype of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        nn.init.constant_(self.layer.bias, 12.0)

    def forward(self, x):
        y = self.layer(x)
        mean = y.mean(-1, keepdim=True)
        variance = (y * y).mean(-1, keepdim=True) - mean * mean
        return (y - mean) * torch.rsqrt(variance.abs() + 1e-3)


class HalfPositions(nn.Module):
    """Rotary angles of positions that are counted in the dtype of the activations."""

    def forward(self, x):
        positions = torch.arange(4096 - len(x), 4096, device=x.device).to(x.dtype)
        x = x.to(torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype)
        angles = positions.to(x.dtype)[:, None] * torch.ones(WIDTH, dtype=x.dtype)
        return x * angles.sin()


class Int8Activations(torch.autograd.Function):
    """Fake quantization to 8 bits by the largest magnitude of a whole batch, on the low-precision path only."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype == torch.float32:
            return x.clone()
        step = x.abs().amax() / 7
        return (x / step).round() * step

    @staticmethod
    def backward(ctx, grad):
        return grad.clone()


class QuantizedPath(nn.Module):
    """A path that is quantized where it runs in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Int8Activations.apply(self.layer(x))


class LargePhase(nn.Module):
    """A time embedding: the sine of a product that is large against its period."""

    def __init__(self) -> None:
        super().__init__()
        self.frequency = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.uniform_(self.frequency.weight, 200, 400)

    def forward(self, x):
        return x + self.frequency(x + 1).sin()


class NormedTwice(nn.Module):
    """The second norm keeps the mean of what is normalized already for backward: nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        return self.second(self.first(x))


class Sorted(nn.Module):
    """Sorts rows by a score, which rounding brings into another order, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.layer = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        order = self.score(x)[:, 0].argsort()
        return self.layer(x[order])[order.argsort()]


def net(inner: str, *more: str) -> tuple[str, ...]:
    """A training of the net around an inner module, in amp_bf16."""
    return around(inner, "precision=amp_bf16", *more, file="planted_numerics", width=WIDTH, batch_size=32)


def _case(name: str, inner: type[nn.Module], kind: str, module: str, operator: str | None = None) -> Planted:
    return Planted(name, net(inner.__name__), "numerics", kind, module, operator)


PLANTED = (
    _case("sum without accumulator", SumWithoutAccumulator, "unexplained_error", "inner", "planted.row_sums"),
    _case("fast path of a kernel", FastExp, "unexplained_error", "inner", "planted.fast_exp"),
    _case("one-pass variance", OnePassVariance, "no_digits_left", "inner"),
    _case("positions in half precision", HalfPositions, "no_digits_left", "inner"),
    _case("quantized path", QuantizedPath, "unexplained_error", "inner"),
    _case("large phase", LargePhase, "no_digits_left", "inner", "aten.sin"),
)
