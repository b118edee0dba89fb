"""Trainings that gain little time by half precision, as users write them."""

import math
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from planted import Planted
from torch import Tensor, nn


class Batches:
    """Normal inputs and targets that are made anew for each batch, by a slow reader."""

    tokens_per_batch = None
    num_train_batches = None
    fingerprint = "slow batches"

    def __init__(self, batch_size: int, seed: int, device: torch.device, read_ms: float) -> None:
        self.batch_size, self.seed, self.device, self.read_ms = batch_size, seed, device, read_ms

    def train_batch(self, index: int) -> tuple[Tensor, Tensor]:
        return self._read(index)

    def val_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self._read(-1)

    def _read(self, index: int) -> tuple[Tensor, Tensor]:
        end = time.perf_counter() + self.read_ms / 1e3
        total = 0.0
        while time.perf_counter() < end:  # decoding, tokenizing, augmenting
            total += math.sqrt(total + 1)
        drawn = torch.Generator().manual_seed(self.seed * 1000 + index + 1)
        values = torch.randn(2, self.batch_size, 512, generator=drawn).to(self.device)
        return values[0], values[1]


class Wide(nn.Module):
    """Layers of products that half precision shortens; a sick model has something between them."""

    def __init__(
        self, width: int = 512, hidden: int = 1024, middle: str | None = None, narrowed: int | None = None
    ) -> None:
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.middle: nn.Module = nn.ReLU() if middle is None else globals()[middle]()
        self.last = nn.Linear(narrowed or hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


class Statistics(nn.Module):
    """A log of activations, written in Python."""

    def forward(self, x: Tensor) -> Tensor:
        largest = 0.0
        for value in x.detach()[:32].flatten().tolist():
            largest = max(largest, math.fabs(value))
        return x.clamp(-largest - 1e6, largest + 1e6)


class Waiting(nn.Module):
    """A lock, a request, a file: the host sleeps."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(x)
        time.sleep(0.01)
        return y


class Recurrence(nn.Module):
    """A recurrence over many steps with a state of a few numbers."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.size = size
        self.decay = nn.Parameter(torch.full((size,), 0.9))

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.size)
        for part in x.unflatten(1, (-1, self.size)).unbind(1):
            state = torch.tanh(state * self.decay + part)
        return state


class FullPrecision(nn.Module):
    """Layers that somebody once took out of autocast."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.down(F.relu(self.up(x.float())))


class Careful(nn.Module):
    """An activation that is computed in float32, to be safe."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = F.leaky_relu(x.float(), 0.1).to(x.dtype)
        return x


class Warp(nn.Module):
    """A warp of images, whose kernel for bfloat16 is slow on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        images = x.view(len(x), 16, 16, 16)
        line = torch.linspace(-1.0, 1.0, 16, dtype=x.dtype)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1).expand(len(x), 16, 16, 2)
        return F.grid_sample(images, 0.9 * grid, align_corners=False).flatten(1)


class Ranked(nn.Module):
    """Order statistics of all activations."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float().sort(dim=-1).values


class Checked(nn.Module):
    """A check of the values in every step."""

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max().item() > 1e6:
            print("large activations")
        return F.relu(x)


_DATA = ("data=synthetic", "data.in_features=512", "data.out_features=512", "data.num_batches=8", "data.batch_size=256")
_NARROW = ("data.in_features=128", "data.out_features=128")
_AMP = ("precision=amp_bf16", *_DATA)


def _wide(middle: str = "null", *more: str) -> tuple[str, ...]:
    return ("model=custom", "model._target_=planted_speed.Wide", f"+model.middle={middle}", *more)


def _case(name: str, overrides: tuple[str, ...], kind: str, module: str | None = None) -> Planted:
    return Planted(name, overrides, "speed", kind, module)


SLEEPING = (*_DATA, *_wide("Waiting"))
CHECKING = (*_AMP, *_wide("Checked"))
_READ = ("data=custom", "data._target_=planted_speed.Batches", "data.batch_size=256", "+data.read_ms=20")
_WIDER = ("+model.width=128", "+model.hidden=4096")

PLANTED = (
    _case("slow reader", ("precision=amp_bf16", *_READ, "task=regression", *_wide()), "data_bound"),
    _case("Python loop", (*_AMP, *_wide("Statistics")), "host_bound", "middle"),
    _case("sleep", (*_AMP, *_wide("Waiting")), "host_bound", "middle"),
    _case(
        "tiny operators",
        (*_AMP, "data.batch_size=32", *_wide("Recurrence", "+model.hidden=512", "+model.narrowed=4")),
        "launch_bound",
        "middle",
    ),
    _case("batch of two", (*_AMP, "data.batch_size=2", *_wide("null", "+model.hidden=4096")), "small_batch"),
    _case("float16 on a CPU", (*_DATA, "precision=amp_fp16", *_wide()), "no_fast_units"),
    _case("autocast off", (*_AMP, *_wide("FullPrecision")), "float32_products", "middle"),
    _case("forgotten override", (*_AMP, "precision.fp32_modules=[last]", *_wide()), "float32_products", "last"),
    _case("careful activation", (*_AMP, *_NARROW, *_wide("Careful", *_WIDER)), "activation_casts", "middle"),
    _case(
        "slow kernel", ("precision=pure_bf16", *_DATA, *_NARROW, *_wide("Warp", *_WIDER)), "slower_operators", "middle"
    ),
    _case("sorting", (*_AMP, *_wide("Ranked", "+model.hidden=2048")), "fixed_operators", "middle"),
)
