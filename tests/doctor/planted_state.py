"""Trainings whose state stops moving in low precision, or whose integers are rounded, and others that are healthy."""

import copy
from functools import partial

import torch
import torch.nn.functional as F
from planted import OwnLoss, Planted
from torch import nn

WIDTH = 32


class Body(nn.Module):
    """A regression with a part of its own between two layers."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.before, self.head = nn.Linear(width, width), nn.Linear(width, 1)

    def middle(self, h):
        return h

    def forward(self, x):
        return self.head(self.middle(self.before(x)))


class RunningMean(Body):
    """A running mean that starts at zero, and moves right for hundreds of steps."""

    def __init__(self, decay=0.999):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.decay = decay

    def middle(self, h):
        with torch.no_grad():
            self.mean = self.decay * self.mean + (1 - self.decay) * (h + 2).mean(0)
        return h + 1e-9 * self.mean.view(1, -1)


class LateMean(Body):
    """A mean of what autocast makes in half precision, held outside the buffers."""

    mean = None

    def middle(self, h):
        batch_mean = h.detach().mean(0) + 1
        self.mean = batch_mean if self.mean is None else torch.lerp(self.mean, batch_mean, 0.001)
        return h


class Counter(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def middle(self, h):
        self.seen += 1
        return h


class Normed(Body):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.before = nn.utils.parametrizations.spectral_norm(self.before)
        self.register_buffer("queue", torch.randn(64, WIDTH))
        self.register_buffer("angles", torch.outer(torch.arange(300.0), torch.rand(4)))
        self.last = None

    def middle(self, h):
        self.last = h.detach()
        self.queue = torch.cat([self.queue[8:], self.last[:8]])
        return self.norm(h)


class Shadow:
    """A user's own class, no module."""

    def __init__(self, model, decay):
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]
        self.decay = decay

    def update(self, model):
        for old, new in zip(self.weights, model.parameters(), strict=True):
            old.lerp_(new, 1 - self.decay)


class Averaged(OwnLoss):
    """Keeps an average of the weights."""

    def __init__(self, decay=0.999):
        self.shadow, self.decay = None, decay

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]).float(), batch[1].float())

    def after_step(self, model):
        if self.shadow is None:
            self.shadow = Shadow(model, self.decay)
        self.shadow.update(model)


class Teacher(Body):
    def __init__(self, decay=0.999):
        super().__init__()
        self.teacher, self.decay = copy.deepcopy(self.before).requires_grad_(False), decay

    def middle(self, h):
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.before.parameters(), strict=True):
                old.mul_(self.decay).add_(new, alpha=1 - self.decay)
        return h


class Angles(Body):
    """Angles of a rotary embedding, whose positions autocast casts for a product of matrices."""

    def __init__(self, length=512):
        super().__init__()
        self.register_buffer("frequencies", 10_000 ** (-torch.arange(0, 16) / 16))
        self.length = length

    def middle(self, h):
        positions = torch.arange(self.length, device=h.device).float()
        angles = positions[:, None] @ self.frequencies[None]
        turned = torch.cat([angles.sin(), angles.cos()], -1)
        return h * (1 + turned.mean(0))


class Slots(Body):
    """Rows of a memory, by a running count in half precision."""

    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.randn(4096, WIDTH) * 1e-3)

    def middle(self, h):
        taken = torch.ones(2600, 1, device=h.device).to(h.dtype)
        slots = taken.cumsum(0)[:, 0] - 1
        return h + self.memory[slots.long()].mean(0)


class Positions(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.arange(1000.0))
        self.table = nn.Embedding(1024, WIDTH)

    def middle(self, h):
        return h + self.table(self.positions.long()).mean(0)


class Steps(Body):
    """The embedding of a diffusion's time."""

    def middle(self, h):
        steps = (61 * torch.arange(len(h), device=h.device)).to(h.dtype)
        waves = torch.exp(-torch.arange(WIDTH, device=h.device) / WIDTH)
        return h + 1e-3 * (steps[:, None] * waves).sin()


class Counted(Body):
    """A count as a divisor, and a mask with a large number: both are rounded, and nothing comes of it."""

    def middle(self, h):
        mask = torch.ones(len(h), 1001, device=h.device, dtype=h.dtype)
        weights = torch.cat([mask[:, :900], mask[:, 900:] * -10_001], 1).softmax(-1)
        return h * (1000 / mask.sum(1, keepdim=True)) * weights.sum(1, keepdim=True)


class OwnAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, decay=0.999):
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                square = self.state[p].setdefault("square", torch.zeros_like(p))
                square.mul_(group["decay"]).addcmul_(p.grad, p.grad, value=1 - group["decay"])
                p.addcdiv_(p.grad, square.sqrt().add_(1e-3), value=-group["lr"])


class OwnMaster(torch.optim.Optimizer):
    """Keeps float32 copies of its own, so that no update is lost."""

    def __init__(self, params, lr=1e-5):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                exact = self.state[p].setdefault("exact", p.float())
                exact -= group["lr"] * p.grad.float().sign()
                p.copy_(exact)


def net(name, mode, *more, task=None):
    own = ("task=regression",) if task is None else ("task=custom", f"task._target_=planted_state.{task}")
    data = ("data=synthetic", f"data.in_features={WIDTH}", "data.out_features=1", "data.batch_size=16")
    model = ("model=custom", f"model._target_=planted_state.{name}")
    return (*model, *data, "data.num_batches=4", *own, f"precision={mode}", *more)


OWN_ADAM = ("optimizer=custom", "optimizer._target_=planted_state.OwnAdam", "optimizer.lr=1e-3")
_case = partial(Planted, "numerics")

PLANTED = (
    (_case("running mean", net("RunningMean", "pure_bf16"), "stuck_state", ""), "self.mean = self.decay"),
    (_case("mean in autocast's dtype", net("LateMean", "amp_bf16"), "stuck_state", ""), "torch.lerp"),
    (_case("counter", net("Counter", "pure_bf16"), "stuck_state", ""), "self.seen += 1"),
    (_case("average of weights", net("Body", "pure_bf16", task="Averaged"), "stuck_state"), "old.lerp_"),
    (_case("teacher", net("Teacher", "pure_bf16"), "stuck_state", "teacher"), "old.mul_"),
    (_case("state of an optimizer", net("Body", "pure_bf16", *OWN_ADAM), "stuck_state"), "square.mul_"),
    (_case("angles", net("Angles", "amp_bf16"), "integers_rounded", ""), "positions[:, None] @"),
    (_case("slots", net("Slots", "amp_bf16"), "integers_rounded", "", "aten.cumsum"), "taken.cumsum"),
    (_case("slots in fp16", net("Slots", "pure_fp16"), "integers_rounded", "", "aten.cumsum"), "taken.cumsum"),
    (_case("positions that are held", net("Positions", "pure_bf16"), "integers_rounded", ""), "positions.long()"),
    (_case("time", net("Steps", "amp_bf16"), "integers_rounded", ""), ".to(h.dtype)"),
)

HEALTHY = {
    "running mean in float32": net("RunningMean", "amp_bf16"),
    "fast running mean": net("RunningMean", "pure_bf16", "+model.decay=0.9"),
    "fast teacher": net("Teacher", "pure_bf16", "+model.decay=0.5"),
    "norms, queues and tables": net("Normed", "pure_bf16"),
    "norms in fp16": net("Normed", "amp_fp16"),
    "positions in float32": net("Positions", "amp_bf16"),
    "few positions": net("Angles", "amp_bf16", "+model.length=200"),
    "counts": net("Counted", "amp_bf16"),
    "counts in half precision": net("Counted", "pure_bf16"),
    "own master weights": net(
        "Body", "pure_bf16", "optimizer=custom", "optimizer._target_=planted_state.OwnMaster", "optimizer.lr=1e-5"
    ),
}
