"""Modes whose linear layers multiply in float8, by torchao's conversion."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from ampsweep.config.schema import PrecisionConfig
from ampsweep.precision.float8_layers import ALIGNMENT, Float8Layers, plan_layers
from ampsweep.precision.precision import Precision
from ampsweep.precision.support import Abilities, ModeUnavailableError, abilities_of
from ampsweep.precision.torchao_import import import_torchao, require_torchao
from ampsweep.records.sections import Float8Layer, Float8Proof, ModeProof

_LOST_BIT: Final = 2.0**-5
"""The last bit of 1 + 2**-5: bfloat16 has 7 mantissa bits, float8_e4m3fn 3."""
_E4M3_MAX: Final = 448.0

_CAPABILITIES: Final = {"fp8_tensorwise": (8, 9), "fp8_rowwise": (9, 0)}
"""Lowest compute capability of NVIDIA GPUs with such kernels (torchao's documentation)."""


class Float8(Precision):
    """bfloat16 autocast in which linear layers multiply in float8, in forward and for both gradients.

    Input, weight and gradient are scaled dynamically, rounded to float8 and multiplied, with sums in float32 and
    results in bfloat16. A device without float8 kernels rounds to float8 and multiplies in float32. Without autocast,
    as in an evaluation, the layers compute in float32. `plan_layers` chooses the layers.
    """

    def __init__(self, mode: str | PrecisionConfig, device: torch.device | str) -> None:
        super().__init__(mode, device)
        self.recipe = self.config.mode.removeprefix("fp8_")  # torchao's name (`Float8LinearRecipeName`)
        self._layers = Float8Layers(self.device.type)
        self.emulated = self.why_emulated(self.config, abilities_of(self.device))
        self._arithmetic: str | None = None

    @classmethod
    def missing_ability(cls, config: PrecisionConfig, device: Abilities) -> str | None:
        fixed = ("float32", True, "bfloat16", False)
        if (config.parameters, config.autocast, config.dtype, config.grad_scaler) != fixed:
            return (
                f"{config.mode} computes under bfloat16 autocast with parameters in float32 and no scaler; leave "
                "precision.parameters, autocast, dtype and grad_scaler as they are"
            )
        return super().missing_ability(config, device)

    @classmethod
    def misfit(cls, config: PrecisionConfig, model: nn.Module) -> str | None:
        require_torchao(f"precision={config.mode}")
        converted, kept = plan_layers(model, config.fp32_modules)
        if converted:
            return None
        num_linear = sum(layer.why != "no_linear" for layer in kept)
        has = f"of its {num_linear} linear layers none" if num_linear else "it has no linear layer that"
        return (
            f"no layer of the model multiplies in float8: {has} has sizes that are multiples of {ALIGNMENT} and is not "
            "the output layer"
        )

    @classmethod
    def why_emulated(cls, config: PrecisionConfig, device: Abilities) -> str | None:
        needed = _CAPABILITIES[config.mode]
        if device.capability is not None and device.capability >= needed:
            return None
        return (
            f"{device.name} has no float8 kernels for {config.mode}, which need an NVIDIA GPU of compute capability "
            f"{needed[0]}.{needed[1]} or later"
        )

    def adapt(self, model: nn.Module) -> None:
        super().adapt(model)
        if reason := self.misfit(self.config, model):
            raise ModeUnavailableError(reason)
        self._layers.convert(model, self.config.fp32_modules, self._convert)

    def _convert(self, model: nn.Module, chosen: Callable[..., bool]) -> nn.Module:
        torchao = import_torchao("torchao.float8", f"precision={self.config.mode}")
        recipe = torchao.Float8LinearConfig.from_recipe_name(self.recipe)
        config = replace(recipe, emulate=self.emulated is not None)
        converted: nn.Module = torchao.convert_to_float8_training(model, module_filter_fn=chosen, config=config)
        return converted

    @property
    def region(self) -> Callable[[], str | None]:
        in_float32 = super().region
        return lambda: self._layers.running or (None if in_float32 is None else in_float32())

    def prove(self) -> ModeProof:
        """Multiply 1 + 2**-5 and float8's largest number by 1 in a converted layer: float8 loses the last bit."""
        layer: Any = nn.Linear(ALIGNMENT, ALIGNMENT, bias=False, device=self.device)
        layer = self._convert(layer, lambda module, _: module is layer)
        values = torch.zeros(ALIGNMENT, ALIGNMENT, device=self.device, dtype=torch.bfloat16)
        values[:, 0], values[:, 1] = _E4M3_MAX, 1 + _LOST_BIT  # the largest number makes the scale 1
        with torch.no_grad():
            layer.weight.copy_(torch.eye(ALIGNMENT))
            results = layer(values)[:, 1]
        self._arithmetic = "rounded" if bool((results == 1).all()) else "exact"
        return ModeProof(float8=self._proof())

    def prove_step(self, work: Any) -> ModeProof:
        converted = []
        for name, (in_features, out_features) in self._layers.sizes.items():
            flops, casts = work.region_flops.get(name, {}), _in_float8(work.region_casts.get(name, {}))
            sizes = {"in_features": in_features, "out_features": out_features}
            converted.append(Float8Layer(name=name, **sizes, flops=flops, casts=sum(casts.values())))
        float8 = self._proof() | Float8Proof(converted=converted, casts=_in_float8(work.casts))
        return super().prove_step(work) | ModeProof(forward_flops=work.forward_flops, float8=float8)

    def _proof(self) -> Float8Proof:
        kept = self._layers.kept
        return Float8Proof(recipe=self.recipe, emulated=self.emulated, arithmetic=self._arithmetic, kept=kept)


def _in_float8(counts: Mapping[str, int]) -> dict[str, int]:
    return {dtype: count for dtype, count in counts.items() if dtype.startswith("float8_")}
