"""Operators that get dtypes which they do not take, as users write them."""

import torch
import torch.nn.functional as F
from planted import Planted, around
from torch import nn

WIDTH = 16
LENGTH = 8


class Net(nn.Module):
    """Two layers around an inner module, which takes sequences: (N, LENGTH, WIDTH)."""

    def __init__(self, inner: str) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, LENGTH * WIDTH)
        self.inner = globals()[inner]()
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        sequences = torch.tanh(self.before(x)).view(-1, LENGTH, WIDTH)
        return self.head(self.inner(sequences).mean(1))


class Attention(nn.Module):
    """Queries, keys and values of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


class RotatedQueries(Attention):
    """Rotary positions whose angles are made in float32 in the forward pass."""

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        angles = torch.arange(LENGTH, device=x.device)[:, None] / 10.0 ** torch.linspace(0, 2, WIDTH, device=x.device)
        cos, sin = angles.cos(), angles.sin()
        q = q * cos + q.flip(-1) * sin
        k = k * cos + k.flip(-1) * sin
        return F.scaled_dot_product_attention(q, k, v)


class Experts(nn.Module):
    """A mixture of experts that gathers their results in a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        tokens = x.reshape(-1, WIDTH)
        chosen = self.router(tokens).argmax(-1)
        out = torch.zeros(tokens.shape, device=x.device)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            out.index_add_(0, rows, expert(tokens[rows]))
        return out.view_as(x)


class ExactHead(nn.Module):
    """A layer with autocast switched off, which does not cast its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.exact = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        hidden = self.first(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.exact(hidden)


class ZeroState(nn.Module):
    """An LSTM whose first state is made in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        state = torch.zeros(1, len(x), WIDTH, device=x.device), torch.zeros(1, len(x), WIDTH, device=x.device)
        return self.lstm(x, state)[0]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), (x.flatten(0, 1).t() @ grad.flatten(0, 1))


class OwnProduct(nn.Module):
    """A custom function without `custom_fwd` and `custom_bwd`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)

    def forward(self, x):
        return _Product.apply(x, self.weight)


class MaskedScores(Attention):
    """A causal mask of -1e9, which float16 cannot hold."""

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 4
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, -1e9)
        return scores.softmax(-1) @ self.value(x)


class OneLayer(nn.Module):
    """A layer, whose output the models below treat."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)


class KeptTable(OneLayer):
    """A table that is made once, under autocast, and is still there when an evaluation goes without it."""

    table = None

    def forward(self, x):
        if self.table is None:
            self.table = self.layer(torch.eye(WIDTH, device=x.device)).detach()
        return torch.matmul(x, self.table)


class Spectrum(nn.Module):
    """A Fourier transform over the sequence, as FNet mixes tokens."""

    def forward(self, x):
        return torch.fft.fft(x, dim=1).real


class ClippedByQuantile(OneLayer):
    """Activations clipped at a quantile of theirs."""

    def forward(self, x):
        y = self.layer(x)
        limit = torch.quantile(y.detach().flatten(1), 0.99, dim=1)
        return y.minimum(limit[:, None, None].to(y.dtype))


class CountedInNumPy(OneLayer):
    """A statistic that NumPy computes, which knows no bfloat16."""

    largest = 0.0

    def forward(self, x):
        y = self.layer(x)
        self.largest = max(self.largest, float(y.detach().cpu().numpy().max()))
        return y


class TimeEmbedding(nn.Module):
    """A diffusion model's embedding of time, from frequencies that are no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies = torch.exp(-torch.arange(WIDTH // 2) / 4.0)
        self.project = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU())

    def forward(self, x):
        angles = torch.arange(LENGTH, device=x.device)[:, None] * self.frequencies.to(x.device)
        return x + self.project(torch.cat([angles.sin(), angles.cos()], dim=-1))


class RunningMean(OneLayer):
    """A running mean of activations, kept in float32 on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(WIDTH)

    def forward(self, x):
        y = self.layer(x)
        if self.training:
            self.mean = self.mean.to(x.device).lerp(y.detach().mean((0, 1)), 0.1)
        return y - self.mean.to(y.dtype)


class Gated(nn.Module):
    """Layers behind a gate that is made in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x * torch.linspace(0, 1, WIDTH, device=x.device))
        return x


class Refusing(OneLayer):
    """A check of the user's own."""

    def forward(self, x):
        y = self.layer(x)
        if y.dtype == torch.bfloat16:
            raise ValueError("no bfloat16 here")
        return y


class Broken(nn.Module):
    """An error in any precision."""

    def forward(self, x):
        raise ValueError("always")


class Adam32(torch.optim.Optimizer):
    """An optimizer with moments in float32."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter, dtype=torch.float32)
                state["mean"].lerp_(parameter.grad, 0.1)
                parameter.add_(state["mean"].sign().to(parameter.dtype), alpha=-group["lr"])


def refusing(probabilities, targets):
    """Raise under autocast, as torch's binary_cross_entropy does on CUDA."""
    if torch.overrides.has_torch_function((probabilities, targets)):
        return torch.overrides.handle_torch_function(refusing, (probabilities, targets), probabilities, targets)
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("refusing is unsafe to autocast")
    return F.binary_cross_entropy(probabilities, targets)


class RefusedLoss:
    """A loss of probabilities."""

    def loss(self, model, batch):
        inputs, targets = batch
        return refusing(torch.sigmoid(model(inputs)), (targets > 0).to(inputs.dtype))

    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch).detach()}, len(batch[1])


def net(inner: str, precision: str, *more: str) -> tuple[str, ...]:
    return around(inner, f"precision={precision}", *more, file="planted_types", width=WIDTH)


def _task(overrides: tuple[str, ...], name: str) -> tuple[str, ...]:
    others = (one for one in overrides if not one.startswith("task="))
    return (*others, "task=custom", f"task._target_=planted_types.{name}")


def _case(name: str, overrides: tuple[str, ...], kind: str, module: str | None, operator: str | None = None) -> Planted:
    return Planted(name, overrides, "types", kind, module, operator)


PLANTED = (
    _case("rotary angles", net("RotatedQueries", "pure_bf16"), "mixed_dtypes", "inner"),
    _case("experts", net("Experts", "amp_bf16"), "mixed_dtypes", "inner", "aten.index_add_"),
    _case("exact head", net("ExactHead", "amp_bf16"), "mixed_dtypes", "inner.exact"),
    _case("first state of an LSTM", net("ZeroState", "pure_bf16"), "mixed_dtypes", "inner.lstm"),
    _case("custom function", net("OwnProduct", "amp_bf16"), "mixed_dtypes", "inner"),
    _case("mask", net("MaskedScores", "amp_fp16"), "number_too_large", "inner", "aten.masked_fill"),
    _case("table from training", net("KeptTable", "amp_bf16"), "mixed_dtypes", "inner"),
    _case("Fourier transform", net("Spectrum", "pure_bf16"), "not_implemented", "inner"),
    _case("quantile", net("ClippedByQuantile", "pure_bf16"), "not_implemented", "inner"),
    _case("NumPy", net("CountedInNumPy", "amp_bf16"), "not_implemented", "inner"),
    _case("frequencies", net("TimeEmbedding", "pure_bf16"), "mixed_dtypes", "inner.project.0"),
    _case("running mean", net("RunningMean", "amp_bf16"), "mixed_dtypes", "inner", "aten.lerp"),
    _case("loss refuses autocast", _task(net("Attention", "amp_fp16"), "RefusedLoss"), "refused_loss", None),
    _case(
        "moments",
        net("Attention", "pure_bf16", "optimizer=custom", "optimizer._target_=planted_types.Adam32"),
        "mixed_dtypes",
        None,
        "aten.lerp_",
    ),
)
