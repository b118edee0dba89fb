"""The momentum of a fused SGD, which torch leaves uninitialized where a scaler skips the first step."""

import torch


def begin_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give a fused SGD zero momentum, of each gradient's size, where it has no momentum yet.

    torch allocates the momentum uninitialized and leaves it to the first step's kernel to fill it. That kernel does
    nothing if the scaler has found a non-finite gradient, and the next step then uses whatever the memory held
    (`_fused_sgd` in torch/optim/sgd.py, torch 2.13). With zeros the first applied step makes the momentum equal to the
    gradient, as torch's own first step does.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["fused"] and group["momentum"] and not group["dampening"]:
            for parameter in group["params"]:
                if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter.grad)
