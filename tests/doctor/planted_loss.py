"""Trainings whose loss low precision spoils, each for a reason of its own, as users write them."""

import torch
import torch.nn.functional as F
from planted import Planted
from torch import nn

FEATURES = 32


class Attention(nn.Module):
    """One head whose mask is the usual -1e9, in the scores' own dtype."""

    def __init__(self, width, how="fill"):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.how = how

    def forward(self, x, padding):
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / x.shape[-1] ** 0.5
        if self.how == "fill":
            scores = scores.masked_fill(padding[:, None, :], -1e9)
        elif self.how == "infinite":
            scores = scores.masked_fill(padding[:, None, :], float("-inf"))
        elif self.how == "lowest":
            scores = scores + padding[:, None, :].to(scores.dtype) * torch.finfo(torch.float32).min
        else:
            scores = scores + padding[:, None, :].to(scores.dtype) * -1e9
        return torch.softmax(scores, dim=-1) @ self.value(x)


class MaskedAttention(nn.Module):
    """Sequences of 8 positions, some of them padding; one of the batch is nothing but padding."""

    def __init__(self, how="fill"):
        super().__init__()
        self.enter = nn.Linear(FEATURES // 8, 16)
        self.attention = Attention(16, how)
        self.leave = nn.Linear(16, FEATURES // 8)

    def forward(self, inputs):
        x = self.enter(inputs.view(len(inputs), 8, -1))
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        padding[0] = self.attention.how != "infinite"
        padding[:, 6:] = True
        return self.leave(self.attention(x, padding)).flatten(1)


class HandmadeNorm(nn.Module):
    """A layer norm with an eps that float16 does not have."""

    def __init__(self, width, eps=1e-8):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True)
        return x * torch.rsqrt(variance + self.eps) * self.weight


class NormOfPadding(nn.Module):
    """Normalizes positions of which some are all zeros."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(FEATURES, FEATURES, bias=False)
        self.norm = HandmadeNorm(FEATURES)
        self.leave = nn.Linear(FEATURES, FEATURES)

    def forward(self, inputs):
        is_real = (torch.arange(len(inputs), device=inputs.device) % 4 != 0)[:, None]
        return self.leave(self.norm(self.enter(inputs * is_real)))


class SquareSum(nn.Module):
    """Divides by the mean square, which it gets from a sum over a long axis."""

    def forward(self, x):
        total = (x * x).sum(-1, keepdim=True)
        return x * x.shape[-1] ** 0.5 / total.sqrt()


class LongSum(nn.Module):
    def __init__(self, width=2048):
        super().__init__()
        self.enter = nn.Linear(FEATURES, width)
        self.scale = SquareSum()
        self.leave = nn.Linear(width, FEATURES)
        nn.init.normal_(self.enter.weight, std=4.0)

    def forward(self, inputs):
        return self.leave(self.scale(self.enter(inputs)))


class Softmax(nn.Module):
    """A softmax that does not subtract the maximum."""

    def forward(self, x):
        powers = torch.exp(x)
        return powers / powers.sum(-1, keepdim=True)


class HandmadeSoftmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(FEATURES, FEATURES)
        self.weigh = Softmax()
        self.leave = nn.Linear(FEATURES, FEATURES)
        nn.init.normal_(self.enter.weight, std=3.0)

    def forward(self, inputs):
        return self.leave(self.weigh(self.enter(inputs)))


class Spreads(nn.Module):
    """Divides by spreads that it gets as logarithms, which is no softmax."""

    def __init__(self):
        super().__init__()
        self.log_spread = nn.Linear(FEATURES, FEATURES)
        nn.init.constant_(self.log_spread.bias, 11.5)

    def forward(self, x):
        return x / (torch.exp(self.log_spread(x)) + 1) ** 0.1


class Spreading(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.divide, self.leave = nn.Linear(FEATURES, FEATURES), Spreads(), nn.Linear(FEATURES, FEATURES)

    def forward(self, inputs):
        return self.leave(self.divide(self.enter(inputs)))


class Block(nn.Module):
    """A residual block, within which a factor may be too large for float16."""

    def __init__(self, width, gain=1.0):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.spread = Spread(gain)

    def forward(self, x):
        return x + self.second(self.spread(self.first(self.norm(x))))


class Spread(nn.Module):
    """Scales its input up and, after a nonlinearity, down again."""

    def __init__(self, gain):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return F.relu(x * self.gain) / self.gain


class DeepNet(nn.Module):
    """Many blocks, of which some leave the range of float16."""

    def __init__(self, depth=14, culprits=(5,), gain=1e6):
        super().__init__()
        self.blocks = nn.ModuleList(Block(FEATURES, gain if number in culprits else 1.0) for number in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class SpreadEverywhere(nn.Sequential):
    """Layers each of which leaves the range of float16."""

    def __init__(self, depth=12):
        super().__init__(*(part for _ in range(depth) for part in (nn.Linear(FEATURES, FEATURES), Spread(1e6))))
        self.append(nn.Linear(FEATURES, FEATURES))


class GrowingResidual(nn.Module):
    """A residual stream that grows until float16 holds it no more."""

    def __init__(self, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(depth))
        self.residual = Residual()
        self.leave = nn.LayerNorm(FEATURES)

    def forward(self, x):
        return self.leave(self.residual(x, self.layers))


class Residual(nn.Module):
    def forward(self, x, layers):
        stream = layers[0](x) * 3000.0
        for layer in layers[1:]:
            stream = stream + stream + layer(x)
        return stream


class Likelihood(nn.Module):
    """Ends in a sigmoid, as a loss of probabilities wants it."""

    def __init__(self, gain=40.0):
        super().__init__()
        self.enter = nn.Linear(FEATURES, FEATURES)
        self.leave = nn.Linear(FEATURES, FEATURES)
        nn.init.normal_(self.leave.weight, std=1.0)
        self.gain = gain

    def forward(self, inputs):
        return torch.sigmoid(self.leave(torch.tanh(self.enter(inputs))))


class LogLoss:
    """A negative logarithm of probabilities, written out."""

    def loss(self, model, batch):
        inputs, targets = batch
        probabilities, wanted = model(inputs), targets > 0
        return -torch.log(torch.where(wanted, probabilities, 1 - probabilities)).mean()

    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch).detach()}, len(batch[1])


class GuardedLogLoss(LogLoss):
    """Guards its logarithm with an eps that float16 does not have."""

    def loss(self, model, batch):
        inputs, targets = batch
        probabilities, wanted = model(inputs), targets > 0
        return -torch.log(torch.where(wanted, probabilities, 1 - probabilities) + 1e-8).mean()


class CrossEntropy(LogLoss):
    """The loss of probabilities that autocast refuses on CUDA."""

    def loss(self, model, batch):
        inputs, targets = batch
        return F.binary_cross_entropy(model(inputs), (targets > 0).to(inputs.dtype))


class Variance(nn.Module):
    """Normalizes by a variance that is the difference of two large numbers."""

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt((x * x).mean(-1, keepdim=True) - mean * mean + 1e-5)


class FarFromZero(nn.Module):
    """Normalizes features that are all far from zero."""

    def __init__(self):
        super().__init__()
        self.enter, self.norm, self.leave = nn.Linear(FEATURES, 64), Variance(), nn.Linear(64, FEATURES)
        with torch.no_grad():
            self.enter.bias += 20

    def forward(self, inputs):
        return self.leave(self.norm(self.enter(inputs)))


class SteepBackward(torch.autograd.Function):
    """Returns what it gets; its gradient passes a large number on the way."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3e7 / 3e7


class Steep(nn.Module):
    def forward(self, x):
        return SteepBackward.apply(x)


class SteepNet(nn.Module):
    """Finite in forward; its gradient is not, whatever the scale."""

    def __init__(self):
        super().__init__()
        self.enter, self.steep, self.leave = nn.Linear(FEATURES, FEATURES), Steep(), nn.Linear(FEATURES, FEATURES)

    def forward(self, inputs):
        return self.leave(self.steep(self.enter(inputs))) * 50


class Small(nn.Module):
    """A net whose loss is so small that its gradients vanish in float16."""

    def __init__(self, std=None):
        super().__init__()
        self.enter, self.leave = nn.Linear(FEATURES, 4 * FEATURES), nn.Linear(4 * FEATURES, FEATURES)
        if std is not None:
            nn.init.normal_(self.enter.weight, std=std)
            nn.init.normal_(self.leave.weight, std=std)

    def forward(self, inputs):
        return self.leave(F.gelu(self.enter(inputs)))


class SmallLoss:
    """A mean squared error in units so small that its gradients are below float16's smallest number."""

    def __init__(self, factor=1e-6):
        self.factor = factor

    def loss(self, model, batch):
        inputs, targets = batch
        return F.mse_loss(model(inputs).float(), targets.float()) * self.factor

    def evaluate(self, model, batch):
        return {"loss": self.loss(model, batch).detach()}, len(batch[1])


class RunningSum(nn.Module):
    """Adds up one element after the other, in the dtype that they have."""

    def forward(self, x):
        total = torch.zeros_like(x[:, 0])
        for column in x.unbind(1):
            total = total + column
        return total[:, None] / x.shape[1]


class CountedMean(nn.Module):
    """Takes away a mean that bfloat16 gets wrong."""

    def __init__(self, width=1024):
        super().__init__()
        self.enter = nn.Linear(FEATURES, width)
        self.mean = RunningSum()
        self.leave = nn.Linear(width, FEATURES)
        with torch.no_grad():
            self.enter.bias += 30

    def forward(self, inputs):
        x = self.enter(inputs)
        return self.leave(F.relu(x - self.mean(x)))


DATA = (
    "data=synthetic",
    f"data.in_features={FEATURES}",
    f"data.out_features={FEATURES}",
    "data.num_batches=4",
    "data.batch_size=16",
    "tracking=disabled",
    "device=cpu",
)


def _model(name, *more):
    return (*DATA, "model=custom", f"model._target_=planted_loss.{name}", *more)


def _fp16(name, *more):
    return (*_model(name, *more), "precision=amp_fp16")


def _bf16(name, *more):
    return (*_model(name, *more), "precision=amp_bf16")


def _task(name):
    return "task=custom", f"task._target_=planted_loss.{name}"


def _planted(name, overrides, kind, module, operator=None):
    return Planted(name, overrides, "loss", kind, module, operator)


PLANTED: tuple[Planted, ...] = (
    _planted(
        "mask is -inf in fp16", _fp16("MaskedAttention", "+model.how=add"), "mask_overflow", "attention", "aten.mul"
    ),
    _planted(
        "lowest number is -inf in bf16",
        _bf16("MaskedAttention", "+model.how=lowest"),
        "mask_overflow",
        "attention",
        "aten.mul",
    ),
    _planted("eps vanishes in a norm", _fp16("NormOfPadding"), "eps_vanishes", "norm", "aten.rsqrt"),
    _planted("sum over a long axis", _fp16("LongSum"), "long_sum", "scale", "aten.sum"),
    _planted("softmax without maximum", _fp16("HandmadeSoftmax"), "exp_overflow", "weigh", "aten.exp"),
    _planted("exponential that is no softmax", _fp16("Spreading"), "exp_overflow", "divide", "aten.exp"),
    _planted("residual stream grows", _fp16("GrowingResidual"), "value_overflow", "residual", "aten.add"),
    _planted("one of 71 modules", _fp16("DeepNet"), "value_overflow", "blocks.5.spread", "aten.mul"),
    _planted("two of 71 modules", _fp16("DeepNet", "+model.culprits=[3,9]"), "value_overflow", "blocks.3.spread"),
    _planted("three of 71 modules", _fp16("DeepNet", "+model.culprits=[2,6,13]"), "value_overflow", "blocks.2.spread"),
    _planted("every other module", _fp16("SpreadEverywhere"), "whole_model", None),
    _planted(
        "log of a rounded probability", (*_fp16("Likelihood"), *_task("LogLoss")), "log_of_zero", "leave", "aten.log"
    ),
    _planted(
        "eps vanishes in a logarithm",
        (*_fp16("Likelihood"), *_task("GuardedLogLoss")),
        "eps_vanishes",
        "leave",
        "aten.log",
    ),
    _planted(
        "cross-entropy of rounded probabilities",
        (*_bf16("Likelihood"), *_task("CrossEntropy")),
        "coarse_rounding",
        "leave",
    ),
    _planted("variance below zero in bf16", _bf16("FarFromZero"), "cancellation", "norm", "aten.sqrt"),
    _planted("gradient leaves the range", _fp16("SteepNet"), "gradient_overflow", "steep"),
    _planted(
        "gradients vanish without scaler",
        (*_fp16("Small"), "precision.grad_scaler=false", *_task("SmallLoss")),
        "gradients_vanish",
        None,
    ),
    _planted(
        "scale too small", (*_fp16("Small"), "precision.init_scale=0.01", *_task("SmallLoss")), "wrong_scale", None
    ),
    _planted("scale too large", (*_fp16("Small"), "precision.init_scale=1e30"), "wrong_scale", None),
    _planted("eps of Adam in fp16", (*_model("Small"), "precision=pure_fp16"), "optimizer_eps", None),
    _planted("updates lost in bf16", (*_model("Small"), "precision=pure_bf16", "+model.std=1.0"), "updates_lost", None),
    _planted("running sum in bf16", _bf16("CountedMean"), "coarse_rounding", "mean"),
    _planted("diverges anyway", (*_fp16("Small"), "optimizer=sgd", "optimizer.lr=1000"), "not_precision", None),
)
