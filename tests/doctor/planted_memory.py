"""Trainings whose memory does not shrink, for reasons that users have."""

import torch
import torch.nn.functional as F
from planted import Planted, around
from torch import nn

WIDTH = 64
LENGTH = 64
BATCH = 64


class Net(nn.Module):
    """Two layers around an inner module, which takes sequences: (N, LENGTH, WIDTH)."""

    def __init__(self, inner: str, **settings: bool) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.inner = globals()[inner](**settings)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        sequences = self.before(x[:, None].expand(-1, LENGTH, -1))
        return self.head(self.inner(sequences).mean(1))


class Layers(nn.Module):
    """Three layers, which keep what they need in the dtype that they compute in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


class CastToFloat(Layers):
    """Activation functions in float32, for safety."""

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x).float())
            x = F.silu(x)
        return x


class Recurrence(nn.Module):
    """A recurrence in float32, of which each state depends on the one before in two ways: they are 2**LENGTH in all."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        state = torch.zeros_like(x[:, 0]).float()
        decays = torch.sigmoid(self.gate(x)).float()
        states = []
        for decay, one in zip(decays.unbind(1), x.float().unbind(1), strict=True):
            state = decay * state + (1 - decay) * torch.tanh(state + one)
            states.append(state)
        return torch.stack(states, 1).to(x.dtype)


class Recurrences(nn.Sequential):
    """The second one casts what the first one has made on very many ways."""

    def __init__(self) -> None:
        super().__init__(Recurrence(), Recurrence())


class WithoutAutocast(Layers):
    """Layers with autocast switched off, as a copied workaround has it."""

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            for layer in self.layers:
                x = F.gelu(layer(x))
        return x


class ScaledByBuffer(Layers):
    """A scale in float32 that makes everything after it float32."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x):
        for layer in self.layers:
            x = F.silu(F.gelu(layer(x) * self.scale))
        return x


class Replicated(nn.Module):
    """Convolutions that pad with their own border, which autocast does in float32 on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3) for _ in range(3))

    def forward(self, x):
        y = x.transpose(1, 2)
        for layer in self.layers:
            y = F.pad(F.relu(layer(y)), (1, 1), mode="replicate")
        return y.transpose(1, 2)


class KeptProbes(Layers):
    """The mean of a probe that no loss uses, added up for the log: no backward pass frees what it was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = nn.Linear(WIDTH, WIDTH)
        self.total = []

    def forward(self, x):
        x = super().forward(x)
        self.total.append(F.gelu(self.probe(x)).square().mean())
        return x


class Shared(nn.Module):
    """One wide layer that is called eight times."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, WIDTH)
        self.layer = nn.Sequential(nn.Linear(WIDTH, 32 * WIDTH, bias=False), nn.Linear(32 * WIDTH, WIDTH))

    def forward(self, x):
        x = x[:, :1]
        for _ in range(8):
            x = x + self.layer(x)
        return x


class TransposedTwice(nn.Module):
    """A weight that is used through a view, which autocast does not keep a copy of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 32 * WIDTH) / 64)

    def forward(self, x):
        x = x[:, :1]
        for _ in range(8):
            x = x + F.linear(F.linear(x, self.weight.t()), self.weight)
        return x


class Adapted(nn.Module):
    """A frozen layer with a small one beside it that is trained, as LoRA has it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(WIDTH, 128 * WIDTH), nn.ReLU(), nn.Linear(128 * WIDTH, WIDTH))
        self.frozen.requires_grad_(False)
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x[:, 0]
        return (x + self.frozen(self.adapter(x)))[:, None]


class Words(nn.Module):
    """A language model whose vocabulary is all there is to it."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 8)
        self.head = nn.Linear(8, vocab_size)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def net(inner: str, *more: str, precision: str = "amp_bf16") -> tuple[str, ...]:
    more = (f"precision={precision}", *more)
    return around(inner, *more, file="planted_memory", width=WIDTH, batch_size=BATCH)


def _case(name: str, overrides: tuple[str, ...], kind: str, module: str | None, operator: str | None = None) -> Planted:
    return Planted(name, overrides, "memory", kind, module, operator)


PLANTED = (
    _case("cast to float32", net("CastToFloat"), "float32_cast", "inner"),
    _case("autocast off", net("WithoutAutocast"), "float32_autocast_off", "inner"),
    _case("modules in float32", net("Layers", "precision.fp32_modules=[inner]"), "float32_autocast_off", "inner"),
    _case("scale in float32", net("ScaledByBuffer"), "float32_promoted", "inner"),
    _case("replicated borders", net("Replicated"), "float32_policy", "inner"),
    _case("probes for the log", net("KeptProbes"), "grows_from_step_to_step", "inner"),
    _case("no cache of casts", net("Shared", "precision.cache_enabled=false"), "cast_again", "inner.layer.0"),
    _case("weight through a view", net("TransposedTwice"), "cast_again", "inner"),
    _case(
        "large vocabulary",
        (
            "precision=amp_bf16",
            "model=custom",
            "model._target_=planted_memory.Words",
            "+model.vocab_size=8192",
            "data=synthetic_tokens",
            "data.vocab_size=8192",
            "data.seq_len=64",
            "data.batch_size=8",
            "task=language_modeling",
        ),
        "large_loss",
        None,
    ),
    _case("frozen weights", net("Adapted", "data.batch_size=2"), "copies_of_weights", "inner.frozen.0"),
    _case(
        "mostly weights",
        (
            "precision=amp_bf16",
            "model=mlp_recipe",
            "model.hidden_size=1024",
            "model.num_layers=6",
            "data.in_features=1024",
            "data.out_features=1024",
            "data.batch_size=16",
        ),
        "mostly_state",
        None,
    ),
)
