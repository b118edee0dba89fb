"""Trainings that gain little time by half precision, as users write them."""

import time
from functools import partial

import torch
import torch.nn.functional as F
from planted import Planted, around

from ampsweep.data.synthetic import SyntheticRegression


class SlowBatches(SyntheticRegression):
    def train_batch(self, index: int):
        time.sleep(0.02)
        return super().train_batch(index)


def relu(self, x):
    return F.relu(x)


def waiting(self, x):
    y = F.relu(x)
    time.sleep(0.01)
    return y


@torch.autocast("cpu", enabled=False)
def exact(self, x):
    for layer in self.layers:
        x = F.relu(layer(x.float()))
    return x


def recurrence(self, x):
    state = x.new_zeros(len(x), 4)
    for part in x.unflatten(1, (-1, 4)).unbind(1):
        state = torch.tanh(state * self.scale[:4] * 0.9 + part)
    return x * state.sum(1, keepdim=True)


def scaled_by_row(self, x):
    return torch.stack([row / (1.0 + row.abs().max().item()) for row in x])


def careful(self, x):
    for _ in range(3):
        x = F.leaky_relu(x.float(), 0.1).to(x.dtype)
    return x


def attend(self, x):
    heads = x.view(len(x), 8, 32, 16)
    return F.scaled_dot_product_attention(heads, heads, heads).flatten(1)


def checked(self, x):
    if x.abs().max().item() > 1e6:
        print("large activations")
    return F.relu(x)


def net(
    inner: str, *more: str, precision="amp_bf16", width=512, hidden=1024, batch_size=256, num_layers=0
) -> tuple[str, ...]:
    more, sizes = ("data.num_batches=8", f"precision={precision}", *more), (width, hidden, width)
    return around(f"planted_speed.{inner}", *more, sizes=sizes, batch_size=batch_size, num_layers=num_layers)


_case = partial(Planted, "speed")
_WITHOUT = ("data=synthetic", "data.in_features=512", "data.out_features=512", "data.num_batches=8")
_READ = ("data=custom", "data._target_=planted_speed.SlowBatches", *(f"+{given}" for given in _WITHOUT[1:]))
_WIDE = {"width": 128, "hidden": 4096}

PLANTED = (
    _case("slow reader", (*(o for o in net("relu") if o not in _WITHOUT), *_READ), "data_bound"),
    _case("sleep", net("waiting"), "host_bound", "inner"),
    _case("tiny operators", net("recurrence", hidden=512, batch_size=32), "launch_bound", "inner"),
    _case("loop over a batch", net("scaled_by_row"), "launch_bound", "inner"),
    _case("float16 on a CPU", net("relu", precision="amp_fp16"), "no_fast_units"),
    _case("forgotten override", net("relu", "precision.fp32_modules=[head]"), "autocast_is_off", "head"),
    _case("decorator", net("exact", num_layers=3), "autocast_is_off", "inner.layers"),
    _case("careful activation", net("careful", **_WIDE), "activation_casts", "inner"),
    _case("slow kernel", net("attend", precision="pure_bf16", **_WIDE), "slower_operators", "inner"),
)
NAMED_LINES = {"sleep": "time.sleep", "loop over a batch": ".item()", "decorator": "enabled=False"}
"""What is on the line that a finding names."""
