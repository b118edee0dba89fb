"""bfloat16 parameters that are rounded stochastically."""

from typing import Self

import torch

from ampsweep.config.schema import PrecisionConfig
from ampsweep.precision.float32_update import Keeping
from ampsweep.precision.precision import Precision
from ampsweep.precision.support import Abilities


class StochasticRounding(Precision):
    """A mode whose optimizers compute in float32 and round what they store, parameters and state, stochastically.

    An update smaller than half the distance of two bfloat16 numbers, which rounding to nearest drops every time, takes
    place with the probability that keeps the mean right (P. Zamirai et al., Revisiting BFloat16 Training, 2020).
    """

    keeping = Keeping.STOCHASTIC

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the step.

        Raises:
            ValueError: the optimizer rounds to nearest, as `Precision.optimizer` has not built it.
        """
        if not getattr(optimizer, "bf16_stochastic_round", False):  # as torchao's classes do by themselves
            self._require_own(optimizer)
        super().step(optimizer)

    @classmethod
    def missing_ability(cls: type[Self], config: PrecisionConfig, device: Abilities) -> str | None:
        """One sentence saying why a device with these abilities cannot run these settings, or None when it can."""
        if config.parameters != "bfloat16":
            return f"stochastic rounding rounds float32 to bfloat16, and precision.parameters is {config.parameters}"
        return super().missing_ability(config, device)
