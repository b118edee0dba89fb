"""Trainings whose loss low precision spoils, each for another reason, as users write them."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from planted import OwnLoss, Planted, around
from torch import nn

FEATURES = 32


def _attention(self, x, mask):
    query, key, value = (layer(x).view(len(x), 8, -1) for layer in self.layers)
    padding = torch.zeros(len(x), 1, 8, dtype=torch.bool, device=x.device)
    padding[0], padding[:, :, 6:] = True, True
    scores = mask(query @ key.transpose(-2, -1) / 2, padding)
    return (torch.softmax(scores, dim=-1) @ value).flatten(1)


added_mask = partial(_attention, mask=lambda scores, padding: scores + padding.to(scores.dtype) * -1e9)
_LOWEST = torch.finfo(torch.float32).min
lowest_mask = partial(_attention, mask=lambda scores, padding: scores + padding.to(scores.dtype) * _LOWEST)
infinite_mask = partial(
    _attention, mask=lambda scores, padding: scores.masked_fill(padding & ~padding.all(-1, True), -math.inf)
)


def gelu(self, x):
    return F.gelu(x)


def norm_of_padding(self, x):
    x = x * (torch.arange(len(x), device=x.device) % 4 != 0)[:, None]
    x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-8)


def square_sum(self, x):
    total = (x * x).sum(-1, keepdim=True)
    return x * x.shape[-1] ** 0.5 / total.sqrt()


def softmax(self, x):
    powers = torch.exp(x)
    return powers / powers.sum(-1, keepdim=True)


def spreads(self, x):
    return x / (torch.exp(self.layers[0](x) + 11.5) + 1) ** 0.1


def growing_residual(self, x):
    stream = self.layers[0](x) * 6000.0
    for layer in self.layers[1:]:
        stream = stream + stream + layer(x)
    return F.layer_norm(stream, stream.shape[-1:])


def variance(self, x):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt((x * x).mean(-1, keepdim=True) - mean * mean + 1e-5)


def running_mean(self, x):
    total = torch.zeros_like(x[:, 0])
    for column in x.unbind(1):
        total = total + column
    return F.relu(x - total[:, None] / x.shape[1])


class SteepBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3e7 / 3e7


def steep(self, x):
    return SteepBackward.apply(x) * 50


def late(self, x):
    self.scale += self.training
    factor = 1.0 if self.scale[0] < 31 else 1e6
    return self.layers[0](x * factor) / factor


class Spread(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return F.relu(x * self.gain) / self.gain


class Block(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.norm, self.spread = nn.LayerNorm(FEATURES), Spread(gain)
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        return x + self.second(self.spread(self.first(self.norm(x))))


class DeepNet(nn.Sequential):
    def __init__(self, depth=14, culprits=(5,)):
        super().__init__(*(Block(1e6 if number in culprits else 1.0) for number in range(depth)))


class SpreadEverywhere(nn.Sequential):
    """Only torch's own layers: there is no line to edit."""

    def __init__(self, depth=12):
        super().__init__(*(nn.Linear(FEATURES, FEATURES) for _ in range(2 * depth + 1)))
        with torch.no_grad():
            for wide, narrow in zip([*self][:-1:2], [*self][1::2], strict=True):
                wide.weight *= 2.0**20
                narrow.weight *= 2.0**-20


class Clamped(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(FEATURES, FEATURES), nn.GELU(), nn.Linear(FEATURES, FEATURES))

    def forward(self, inputs):
        outputs = super().forward(inputs)
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        return outputs


class Likelihood(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        nn.init.normal_(self.leave.weight, std=1.0)

    def forward(self, inputs):
        return torch.sigmoid(self.leave(torch.tanh(self.enter(inputs))))


class LogLoss(OwnLoss):
    def __init__(self, eps=0.0):  # float16 does not have 1e-8
        self.eps = eps

    def loss(self, model, batch):
        probabilities, wanted = model(batch[0]), batch[1] > 0
        chosen = torch.where(wanted, probabilities, 1 - probabilities)
        return -torch.log(chosen + self.eps if self.eps else chosen).mean()


class CrossEntropy(OwnLoss):
    def loss(self, model, batch):
        return F.binary_cross_entropy(model(batch[0]), (batch[1] > 0).to(batch[0].dtype))


class SmallLoss(OwnLoss):
    """A mean squared error in units so small that its gradients are below float16's smallest number."""

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]).float(), batch[1].float()) * 1e-6


_SIZES = (f"data.in_features={FEATURES}", f"data.out_features={FEATURES}", "data.num_batches=4", "data.batch_size=16")
_DEVICE = ("tracking=disabled", "device=cpu")
DATA = ("data=synthetic", *_SIZES, *_DEVICE)


def _mode(mode, task):
    return (f"precision={mode}", *(() if task is None else ("task=custom", f"task._target_=planted_loss.{task}")))


def model(name, mode, *more, task=None):
    return (*DATA, "model=custom", f"model._target_=planted_loss.{name}", *_mode(mode, task), *more)


def net(inner, mode, *more, width=FEATURES, task=None, num_layers=0, **settings):
    more, sizes = ("data.num_batches=4", *_DEVICE, *_mode(mode, task), *more), (FEATURES, width, FEATURES)
    more = around(f"planted_loss.{inner}", *more, sizes=sizes, batch_size=16, num_layers=num_layers, **settings)
    return tuple(override for override in more if task is None or override != "task=regression")


_case = partial(Planted, "loss")
_small, _deep = partial(net, "gelu", width=128), partial(model, "DeepNet", "amp_fp16")
_likely = partial(model, "Likelihood")
_RATE = ("optimizer=sgd", "optimizer.lr=0.5")
_no_scaler = "precision.grad_scaler=false"

PLANTED: tuple[Planted, ...] = (
    _case("mask is -inf in fp16", net("added_mask", "amp_fp16", num_layers=3), "mask_overflow", "inner", "aten.mul"),
    _case("lowest is -inf in bf16", net("lowest_mask", "amp_bf16", num_layers=3), "mask_overflow", "inner", "aten.mul"),
    _case("eps vanishes in a norm", net("norm_of_padding", "amp_fp16"), "eps_vanishes", "inner", "aten.rsqrt"),
    _case("sum over a long axis", net("square_sum", "amp_fp16", width=2048, std=4.0), "long_sum", "inner", "aten.sum"),
    _case("softmax without maximum", net("softmax", "amp_fp16", std=3.0), "exp_overflow", "inner", "aten.exp"),
    _case("exp that is no softmax", net("spreads", "amp_fp16", num_layers=1), "exp_overflow", "inner", "aten.exp"),
    _case("residual grows", net("growing_residual", "amp_fp16", num_layers=6), "value_overflow", "inner", "aten.add"),
    _case("one of 71 modules", _deep(), "value_overflow", "5.spread", "aten.mul"),
    _case("three of 71 modules", _deep("+model.culprits=[2,6,13]"), "value_overflow", "2.spread"),
    _case("every other module", model("SpreadEverywhere", "amp_fp16"), "whole_model"),
    _case("log of a rounded probability", _likely("amp_fp16", task="LogLoss"), "log_of_zero", "leave", "aten.log"),
    _case("eps vanishes", _likely("amp_fp16", "+task.eps=1e-8", task="LogLoss"), "eps_vanishes", "leave", "aten.log"),
    _case("rounded probabilities", _likely("amp_bf16", task="CrossEntropy"), "coarse_rounding", "leave"),
    _case("variance below zero in bf16", net("variance", "amp_bf16", shift=20), "cancellation", "inner", "aten.sqrt"),
    _case("gradient leaves the range", net("steep", "amp_fp16"), "gradient_overflow", "inner"),
    _case("gradients vanish without scaler", _small("amp_fp16", _no_scaler, task="SmallLoss"), "gradients_vanish"),
    _case("a hook clamps while scaled", model("Clamped", "amp_fp16", *_RATE, task=None), "changed_while_scaled"),
    _case("scale too small", _small("amp_fp16", "precision.init_scale=0.01", task="SmallLoss"), "wrong_scale"),
    _case("scale too large", _small("amp_fp16", "precision.init_scale=1e30"), "wrong_scale"),
    _case("eps of Adam in fp16", _small("pure_fp16"), "optimizer_eps"),
    _case("updates lost in bf16", _small("pure_bf16", std=1.0, last_std=1.0), "updates_lost", "before"),
    _case("updates lost, loss as good", _small("pure_bf16", "optimizer.lr=1e-6"), "updates_lost", "before"),
    _case("fp16 updates", _small("pure_fp16", "optimizer=sgd", "optimizer.lr=1e-5"), "updates_lost", "before"),
    _case("running sum in bf16", net("running_mean", "amp_bf16", width=1024, shift=30), "coarse_rounding", "inner"),
    _case("diverges anyway", _small("amp_fp16", "optimizer=sgd", "optimizer.lr=1000"), "not_precision"),
    _case("infinite anyway", _small("amp_bf16", "optimizer=sgd", "optimizer.lr=1e30"), "not_precision"),
)
