"""Trainings that gain little time by half precision, as users write them."""

import math
import time
from functools import partial

import torch
import torch.nn.functional as F
from planted import Planted, around
from torch import nn


class Batches:
    tokens_per_batch = num_train_batches = None
    fingerprint = "slow batches"

    def __init__(self, batch_size: int, seed: int, device: torch.device, read_ms: float) -> None:
        self.batch_size, self.seed, self.device, self.read_ms = batch_size, seed, device, read_ms

    def train_batch(self, index: int):
        end, total = time.perf_counter() + self.read_ms / 1e3, 0.0
        while time.perf_counter() < end:  # decoding, tokenizing, augmenting
            total += math.sqrt(total + 1)
        drawn = torch.Generator().manual_seed(self.seed * 1000 + index + 1)
        return torch.randn(2, self.batch_size, 512, generator=drawn).to(self.device).unbind()

    def val_batches(self):
        yield self.train_batch(-1)


def relu(self, x):
    return F.relu(x)


def statistics(self, x):
    largest = 0.0
    for value in x.detach()[:32].flatten().tolist():
        largest = max(largest, math.fabs(value))
    return x.clamp(-largest - 1e6, largest + 1e6)


def waiting(self, x):
    y = F.relu(x)
    time.sleep(0.01)
    return y


def recurrence(self, x):
    state = x.new_zeros(len(x), 4)
    for part in x.unflatten(1, (-1, 4)).unbind(1):
        state = torch.tanh(state * self.scale[:4] * 0.9 + part)
    return x * state.sum(1, keepdim=True)


class FullPrecision(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return self.down(F.relu(self.up(x.float())))


def careful(self, x):
    for _ in range(3):
        x = F.leaky_relu(x.float(), 0.1).to(x.dtype)
    return x


def warp(self, x):
    images = x.view(len(x), 16, 16, 16)
    line = torch.linspace(-1.0, 1.0, 16, dtype=x.dtype)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1).expand(len(x), 16, 16, 2)
    return F.grid_sample(images, 0.9 * grid, align_corners=False).flatten(1)


def ranked(self, x):
    return x.float().sort(dim=-1).values


def checked(self, x):
    if x.abs().max().item() > 1e6:
        print("large activations")
    return F.relu(x)


def net(inner: str, *more: str, precision="amp_bf16", width=512, hidden=1024, batch_size=256) -> tuple[str, ...]:
    more, sizes = ("data.num_batches=8", f"precision={precision}", *more), (width, hidden, width)
    return around(f"planted_speed.{inner}", *more, sizes=sizes, batch_size=batch_size, num_layers=0)


_case = partial(Planted, "speed")
_WITHOUT = ("data=synthetic", "data.in_features=512", "data.out_features=512", "data.num_batches=8")
_READ = ("data=custom", "data._target_=planted_speed.Batches", "+data.read_ms=20")
_WIDE = {"width": 128, "hidden": 4096}

PLANTED = (
    _case("slow reader", (*(o for o in net("relu") if o not in _WITHOUT), *_READ), "data_bound"),
    _case("Python loop", net("statistics"), "host_bound", "inner"),
    _case("sleep", net("waiting"), "host_bound", "inner"),
    _case("tiny operators", net("recurrence", hidden=512, batch_size=32), "launch_bound", "inner"),
    _case("batch of two", net("relu", hidden=4096, batch_size=2), "small_batch"),
    _case("float16 on a CPU", net("relu", precision="amp_fp16"), "no_fast_units"),
    _case("autocast off", net("FullPrecision"), "float32_products", "inner"),
    _case("forgotten override", net("relu", "precision.fp32_modules=[head]"), "float32_products", "head"),
    _case("careful activation", net("careful", **_WIDE), "activation_casts", "inner"),
    _case("slow kernel", net("warp", precision="pure_bf16", **_WIDE), "slower_operators", "inner"),
    _case("sorting", net("ranked", hidden=2048), "fixed_operators", "inner"),
)
