"""Operators that get dtypes that they refuse, as users write them."""

from functools import partial

import torch
import torch.nn.functional as F
from planted import OwnLoss, Planted, around
from torch import nn

WIDTH = 16
LENGTH = 8


def attention(self, x):
    query, key, value = (layer(x) for layer in self.layers)
    return F.scaled_dot_product_attention(query, key, value)


def rotated_queries(self, x):
    q, k, v = (layer(x) for layer in self.layers)
    angles = torch.arange(LENGTH, device=x.device)[:, None] / 10.0 ** torch.linspace(0, 2, WIDTH, device=x.device)
    cos, sin = angles.cos(), angles.sin()
    q = q * cos + q.flip(-1) * sin
    k = k * cos + k.flip(-1) * sin
    return F.scaled_dot_product_attention(q, k, v)


def masked_scores(self, x):
    query, key, value = (layer(x) for layer in self.layers)
    scores = query @ key.transpose(1, 2) / 4
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
    scores = scores.masked_fill(future, -1e9)
    return scores.softmax(-1) @ value


def experts(self, x):
    tokens = x.reshape(-1, WIDTH)
    router, *others = self.layers
    chosen = router(tokens)[:, :2].argmax(-1)
    out = torch.zeros(tokens.shape, device=x.device)
    for number, expert in enumerate(others):
        rows = (chosen == number).nonzero().flatten()
        out.index_add_(0, rows, expert(tokens[rows]))
    return out.view_as(x)


def exact_head(self, x):
    hidden = self.layers[0](x)
    with torch.autocast(x.device.type, enabled=False):
        return self.layers[1](hidden)


class ZeroState(nn.LSTM):
    def __init__(self, width) -> None:
        super().__init__(width, width, batch_first=True)

    def forward(self, x):
        state = torch.zeros(1, len(x), WIDTH, device=x.device), torch.zeros(1, len(x), WIDTH, device=x.device)
        return super().forward(x, state)[0]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), (x.flatten(0, 1).t() @ grad.flatten(0, 1))


def own_product(self, x):
    return _Product.apply(x, self.layers[0].weight)


def kept_table(self, x):
    if not hasattr(self, "table"):
        self.table = self.layers[0](torch.eye(WIDTH, device=x.device)).detach()
    return torch.matmul(x, self.table)


def spectrum(self, x):
    return torch.fft.fft(x, dim=1).real


def counted_in_numpy(self, x):
    y = self.layers[0](x)
    self.largest = float(y.detach().cpu().numpy().max())
    return y


class TimeEmbedding(nn.Module):
    def __init__(self, width) -> None:
        super().__init__()
        self.frequencies = torch.exp(-torch.arange(width // 2) / 4.0)
        self.project = nn.Sequential(nn.Linear(width, width), nn.SiLU())

    def forward(self, x):
        angles = torch.arange(LENGTH, device=x.device)[:, None] * self.frequencies.to(x.device)
        return x + self.project(torch.cat([angles.sin(), angles.cos()], dim=-1))


def gated(self, x):
    for layer in self.layers:
        x = layer(x * torch.linspace(0, 1, WIDTH, device=x.device))
    return x


def refusing_bfloat16(self, x):
    y = self.layers[0](x)
    if y.dtype == torch.bfloat16:
        raise ValueError("no bfloat16 here")
    return y


def broken(self, x):
    raise ValueError("always")


class Adam32(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter, dtype=torch.float32)
                state["mean"].lerp_(parameter.grad, 0.1)
                parameter.add_(state["mean"].sign().to(parameter.dtype), alpha=-1e-3)


def refusing(probabilities, targets):
    if torch.overrides.has_torch_function((probabilities, targets)):
        return torch.overrides.handle_torch_function(refusing, (probabilities, targets), probabilities, targets)
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("refusing is unsafe to autocast")
    return F.binary_cross_entropy(probabilities, targets)


class RefusedLoss(OwnLoss):
    def loss(self, model, batch):
        inputs, targets = batch
        return refusing(torch.sigmoid(model(inputs)), (targets > 0).to(inputs.dtype))


def net(inner: str, precision: str, own: str = "") -> tuple[str, ...]:
    group, _, name = own.partition(".")
    given = (f"{group}=custom", f"{group}._target_=planted_types.{name}") if own else ()
    sizes, more = (WIDTH, WIDTH, 1), (f"precision={precision}", *given)
    overrides = around(f"planted_types.{inner}", *more, sizes=sizes, batch_size=8, length=LENGTH)
    return tuple(override for override in overrides if group != "task" or override != "task=regression")


_case = partial(Planted, "types")

PLANTED = (
    _case("rotary angles", net("rotated_queries", "pure_bf16"), "stops_with_error", "inner"),
    _case("experts", net("experts", "amp_bf16"), "stops_with_error", "inner", "aten.index_add_"),
    _case("exact head", net("exact_head", "amp_bf16"), "stops_with_error", "inner.layers.1"),
    _case("first state of an LSTM", net("ZeroState", "pure_bf16"), "stops_with_error", "inner"),
    _case("custom function", net("own_product", "amp_bf16"), "stops_with_error", "inner"),
    _case("mask", net("masked_scores", "amp_fp16"), "stops_with_error", "inner", "aten.masked_fill"),
    _case("table from training", net("kept_table", "amp_bf16"), "stops_with_error", "inner"),
    _case("Fourier transform", net("spectrum", "pure_bf16"), "stops_with_error", "inner"),
    _case("NumPy", net("counted_in_numpy", "amp_bf16"), "stops_with_error", "inner"),
    _case("frequencies", net("TimeEmbedding", "pure_bf16"), "stops_with_error", "inner.project.0"),
    _case(
        "loss refuses autocast", net("attention", "amp_fp16", "task.RefusedLoss"), "stops_with_error", None, "refusing"
    ),
    _case("moments", net("attention", "pure_bf16", "optimizer.Adam32"), "stops_with_error", None, "aten.lerp_"),
)
