"""The precision of a training that chose it by itself, as its instruments see it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ampsweep.config.modes import MODES, arm_label
from ampsweep.config.schema import PrecisionConfig
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.operators import innermost_mode
from ampsweep.observe.step import TracedStep, parameters_of
from ampsweep.precision.flags import float32_settings
from ampsweep.records.sections import ModeProof, RecordedDtypes

HALF = {"float16": "fp16", "bfloat16": "bf16"}


class ObservedPrecision:
    """What the recorder asks of a precision (`recorder.instruments.MeasuredPrecision`), without any influence on it.

    Args:
        scaler: the training's own, enabled or not; None without one. It is only read.
        claimed: the settings that the training is said to have; None if nothing is said.
    """

    emulated: str | None = None
    region = None

    def __init__(
        self, device: torch.device, scaler: torch.amp.GradScaler | None, claimed: PrecisionConfig | None
    ) -> None:
        self.device, self.claimed = device, claimed
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._one = torch.ones((), device=device)
        self._base = replace(claimed or PrecisionConfig(mode="observed"), grad_scaler=self._scaler is not None)
        if (own := self._scaler) is not None:
            self._base = replace(
                self._base,
                init_scale=own.get_scale(),
                growth_factor=own.get_growth_factor(),
                backoff_factor=own.get_backoff_factor(),
                growth_interval=own.get_growth_interval(),
            )

    @property
    def config(self) -> PrecisionConfig:
        """The settings claimed, with the scaler that there is and torch's switches for float32 as they are now."""
        return replace(self._base, **float32_settings(self.device))

    def scale(self) -> Tensor | float | None:
        """The current scale (0-dim float32 on an accelerator), without waiting for the device; None without scaler."""
        if self._scaler is None:
            return None
        if self.device.type == "cpu" and innermost_mode() is None:
            return self._scaler.get_scale()  # which waits for nothing there, and costs less
        scale = torch.amp.GradScaler.scale(self._scaler, self._one)  # as the suite does: a trace sees the same
        return scale.item() if self.device.type == "cpu" else scale

    def prove_step(self, work: TracedStep) -> ModeProof:
        return ModeProof()

    def proved(self, proof: ModeProof, dtypes: RecordedDtypes) -> PrecisionConfig | None:
        """The settings that a traced step proves; None without a traced step or matrix products in it."""
        if not proof.flops or dtypes.parameters is None:
            return None
        compute, parameters, arithmetic = dtypes.compute or "float32", dtypes.parameters, proof.fp32_arithmetic or {}
        tf32, matmul = False, None
        half = parameters if parameters in HALF else compute if compute in HALF else None
        if half is not None:
            mode = ("pure_" if parameters in HALF else "amp_") + HALF[half]
        else:
            is_rounded = arithmetic.get("matmul") == "rounded"
            tf32 = arithmetic.get("convolution", arithmetic.get("matmul")) == "rounded"
            mode = "fp64" if parameters == "float64" else "tf32" if tf32 else "fp32"
            matmul = None if is_rounded == tf32 else "high" if is_rounded else "highest"
        settings = replace(self.config, mode=mode, parameters=parameters, dtype=compute, tf32=tf32, fp32_matmul=matmul)
        return replace(settings, autocast=compute in HALF and parameters not in HALF)


def recorded_dtypes(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], proof: ModeProof) -> RecordedDtypes:
    """The dtype that has most of the bytes (of the arithmetic: most of the FLOPs), each None if there is none."""
    parameters = [*model.parameters()] or [p for optimizer in optimizers for p in parameters_of(optimizer)]
    kept = [state.values() for own in optimizers for state in own.state.values() if isinstance(state, dict)]
    states = [value for values in kept for value in values if isinstance(value, Tensor) and value.dim()]
    return RecordedDtypes(
        compute=max(proof.flops, key=proof.flops.__getitem__) if proof.flops else None,
        parameters=_most(parameters),
        gradients=_most(grad for p in parameters if (grad := p.grad) is not None),
        optimizer_state=_most(states),
    )


def label(settings: PrecisionConfig) -> str:
    """The arm of these settings, whatever the numbers of its scaler; `fp64` is no mode of the table."""
    if settings.mode not in MODES:
        return settings.mode
    scaler = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    stock = PrecisionConfig(mode=settings.mode)
    return arm_label(replace(settings, **{name: getattr(stock, name) for name in scaler}))


def _most(tensors: Iterable[Tensor]) -> str | None:
    sizes = Counter[torch.dtype]()
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.numel()
    return dtype_name(sizes.most_common(1)[0][0]) if sizes else None
