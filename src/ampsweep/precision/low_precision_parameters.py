"""Modes with half-precision parameters and stochastic rounding or float32 master weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampsweep.config.schema import PrecisionConfig
from ampsweep.precision.float32_update import Keeping
from ampsweep.precision.parameter_chunks import HALF
from ampsweep.precision.precision import Precision
from ampsweep.precision.support import Abilities


class StochasticRounding(Precision):
    """Optimizers compute in float32 and round parameters and state stochastically to bfloat16.

    Rounding to nearest drops every update smaller than half the distance of two bfloat16 numbers; this rounding applies
    it with the probability that keeps the mean (P. Zamirai et al., Revisiting BFloat16 Training, 2020).
    """

    keeping = Keeping.STOCHASTIC

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the step; raise a ``ValueError`` unless `Precision.optimizer` built the optimizer."""
        self._require_own(optimizer)
        super().step(optimizer)

    @classmethod
    def missing_ability(cls, config: PrecisionConfig, device: Abilities) -> str | None:
        if config.parameters != "bfloat16":
            return f"stochastic rounding rounds float32 to bfloat16, and precision.parameters is {config.parameters}"
        return super().missing_ability(config, device)


class MasterWeights(Precision):
    """Parameters and gradients are in half precision; optimizers update float32 copies of the parameters, their master
    weights (P. Micikevicius et al., Mixed Precision Training, 2018, section 3.1).

    Gradients become float32 where they are unscaled: float16 would lose the values that the scale kept from vanishing.
    """

    keeping = Keeping.MASTER

    def __init__(self, mode: str | PrecisionConfig, device: torch.device | str) -> None:
        super().__init__(mode, device)
        self._grad_dtypes: dict[nn.Parameter, torch.dtype | None] = {}
        """The dtypes of gradients that became float32, for the next backward pass."""

    def convert(self, model: nn.Module) -> nn.Module:
        """Convert the model, and keep the float32 values of its parameters for their master weights."""
        wide = {p: p.detach() for p in model.parameters() if p.requires_grad and p.dtype == torch.float32}
        converted = super().convert(model)
        for parameter, value in wide.items():
            if parameter.dtype != torch.float32:
                self._converted_from[parameter] = value.to(self.device)
        return converted

    def backward(self, *losses: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
        for parameter, dtype in self._grad_dtypes.items():
            if parameter.grad is None:
                parameter.grad_dtype = dtype
        self._grad_dtypes.clear()
        super().backward(*losses, inputs=inputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Replace the gradients by float32 gradients, divided by the scale."""
        if not self._scales:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.dtype in HALF:
                    self._grad_dtypes[parameter] = parameter.grad_dtype
                    parameter.grad_dtype = None
                    parameter.grad = parameter.grad.float()
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take or skip the step; raise a ``ValueError`` unless `Precision.optimizer` built the optimizer."""
        self._require_own(optimizer)
        unscales_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
        if self._scales and not unscales_itself and not self.found_nonfinite(optimizer):
            self.unscale_(optimizer)
        super().step(optimizer)
