"""Optimizers and schedules as users write them."""

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


class EachParameter(Optimizer):
    """Steps by `update(parameter, group)` for each parameter with a gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)


class Lion(EachParameter):
    """Symbolic discovery of optimization algorithms (Chen et al., 2023), algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def update(self, parameter, group):
        first, second = group["betas"]
        average = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
        update = average.lerp(parameter.grad, 1 - first).sign_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update * group["lr"])
        average.lerp_(parameter.grad, 1 - second)


class Decaying(EachParameter):
    """SGD that counts its updates in its groups, and takes smaller ones."""

    def __init__(self, params, lr=1e-2, power=1.0):
        super().__init__(params, {"lr": lr, "power": power, "taken": 0})

    def step(self, closure=None):
        for group in self.param_groups:
            group["taken"] += 1
        super().step()

    def update(self, parameter, group):
        parameter.sub_(parameter.grad * (group["lr"] / group["taken"] ** group["power"]))


class Scaling(EachParameter):
    """SGD that unscales and skips by itself, as a GradScaler lets it."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})
        self._step_supports_amp_scaling = True

    def update(self, parameter, group):
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        applies = 1.0 if found_inf is None else 1.0 - found_inf
        gradient = parameter.grad if scale is None else parameter.grad / scale
        parameter.sub_(torch.nan_to_num(gradient, posinf=0.0, neginf=0.0) * group["lr"] * applies)


class WithoutRate(EachParameter):
    """SGD that knows its learning rate itself."""

    def __init__(self, params):
        super().__init__(params, {})

    def update(self, parameter, group):
        parameter.sub_(parameter.grad * 1e-2)


def adam_of(params, lr=1e-3):
    return torch.optim.Adam(params, lr=lr)


def forgetful(params, lr=1e-3):
    return torch.optim.SGD([parameter for parameter in params if parameter.ndim > 1], lr=lr)


def counted(params):
    return len(list(params))


def warmed_up(optimizer, num_steps):
    """A linear warm-up, then a cosine."""
    parts = [LinearLR(optimizer, 0.25, total_iters=3), CosineAnnealingLR(optimizer, num_steps)]
    return SequentialLR(optimizer, parts, [3])


def power(applied_steps, num_steps, exponent=1.0):
    return (1 - applied_steps / num_steps) ** exponent


def halving(steps):
    return 0.5 ** (steps // 4)


class Shares(list):
    """A schedule that is an object."""

    __call__ = list.__getitem__


def no_scheduler(optimizer):
    return len(optimizer.param_groups)


class ByLoss(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, loss):
        """Follow the training loss."""
