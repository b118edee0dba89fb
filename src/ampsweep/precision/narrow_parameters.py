"""Modes whose parameters are in half precision, with stochastic rounding or with float32 master weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampsweep.config.schema import PrecisionConfig
from ampsweep.precision.float32_update import Keeping
from ampsweep.precision.pieces import HALF
from ampsweep.precision.precision import Precision
from ampsweep.precision.support import Abilities


class StochasticRounding(Precision):
    """A mode whose optimizers compute in float32 and round what they store, parameters and state, stochastically.

    An update smaller than half the distance of two bfloat16 numbers, which rounding to nearest drops every time, takes
    place with the probability that keeps the mean right (P. Zamirai et al., Revisiting BFloat16 Training, 2020).
    """

    keeping = Keeping.STOCHASTIC

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the step; a ``ValueError`` is raised unless `Precision.optimizer` has built the optimizer."""
        self._require_own(optimizer)
        super().step(optimizer)

    @classmethod
    def missing_ability(cls, config: PrecisionConfig, device: Abilities) -> str | None:
        if config.parameters != "bfloat16":
            return f"stochastic rounding rounds float32 to bfloat16, and precision.parameters is {config.parameters}"
        return super().missing_ability(config, device)


class MasterWeights(Precision):
    """A mode whose parameters and gradients are in half precision, and whose optimizers update float32 copies of the
    parameters, their master weights (P. Micikevicius et al., Mixed Precision Training, 2018, section 3.1).

    Gradients become float32 where they are unscaled: float16 has no room for what the scale has kept from vanishing.
    """

    keeping = Keeping.MASTER

    def convert(self, model: nn.Module) -> nn.Module:
        """Convert the model; what its parameters lose by that, their master weights keep."""
        wide = {one: one.detach() for one in model.parameters() if one.requires_grad and one.dtype == torch.float32}
        converted = super().convert(model)
        for parameter, value in wide.items():
            if parameter.dtype != torch.float32:
                self._converted_from[parameter] = value.to(self.device)
        return converted

    def __init__(self, mode: str | PrecisionConfig, device: torch.device | str) -> None:
        super().__init__(mode, device)
        self._grad_dtypes: dict[nn.Parameter, torch.dtype | None] = {}
        """The dtypes of gradients that have become float32, for the next backward pass."""

    def backward(self, *losses: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
        """Run the backward pass of each loss, which makes gradients in their own dtype again."""
        for parameter, dtype in self._grad_dtypes.items():
            if parameter.grad is None:
                parameter.grad_dtype = dtype
        self._grad_dtypes.clear()
        super().backward(*losses, inputs=inputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Replace the gradients by float32 ones, divided by the scale."""
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
        """Take the step, or skip it; a ``ValueError`` refuses what `Precision.optimizer` has not built."""
        self._require_own(optimizer)
        unscales_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
        if self._scales and not unscales_itself and not self.found_nonfinite(optimizer):
            self.unscale_(optimizer)
        super().step(optimizer)
