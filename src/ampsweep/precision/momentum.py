"""Momentum for a fused SGD whose first step may be skipped."""

import torch


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give a fused SGD the momentum of rest, zeros of each gradient's size, where it has none yet.

    torch takes uninitialized memory for it and leaves the filling to the first step's kernel, which does nothing when
    the scaler has found a non-finite gradient; the next step then goes on from whatever lay there (`_fused_sgd` in
    torch/optim/sgd.py, torch 2.13). From zeros the first applied step leaves the gradient, as torch's own does.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["fused"] and group["momentum"] and not group["dampening"]:
            for parameter in group["params"]:
                if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter.grad)
