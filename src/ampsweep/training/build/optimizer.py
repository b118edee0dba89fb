"""The optimizer of a run, with fused kernels where the device has them."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from ampsweep.config.errors import UserError
from ampsweep.config.schema import AdamWConfig, OptimizerConfig, SGDConfig

_FUSED_DEVICES = {"cuda", "cpu", "mps"}


def build_optimizer(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Build the optimizer over the parameters that need a gradient.

    Raises:
        UserError: there is nothing to train, or `optimizer.fused=true` where the device has no fused kernels.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        raise UserError("the model has no parameters to train")
    fused = decide_fused(config.fused, trainable[0].device)
    if isinstance(config, SGDConfig):
        return torch.optim.SGD(
            trainable,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            fused=fused,
        )
    assert isinstance(config, AdamWConfig)
    return torch.optim.AdamW(
        trainable,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=fused,
    )


def build_optimizers(
    config: OptimizerConfig, model: nn.Module, trains: Mapping[str, Sequence[str]]
) -> dict[str, torch.optim.Optimizer]:
    return {
        name: build_optimizer(
            config, [p for n, p in model.named_parameters() if any(fnmatchcase(n, one) for one in patterns)]
        )
        for name, patterns in trains.items()
    }


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the optimizer's kernels are fused: then the device decides to skip a step, unseen by the host."""
    return bool(optimizer.defaults.get("fused"))


def decide_fused(wanted: bool | None, device: torch.device) -> bool:
    """Decide whether to use fused kernels; `wanted=None` uses them if the device has them.

    Raises:
        UserError: they are wanted, but torch has none for the device.
    """
    available = device.type in _FUSED_DEVICES
    if wanted and not available:
        raise UserError(f"optimizer.fused=true: torch has no fused optimizers on {device.type}")
    return available if wanted is None else wanted
