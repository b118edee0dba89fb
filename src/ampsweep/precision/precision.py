"""A precision mode as one object that a training loop calls at the same places in every mode."""

import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ampsweep.config.modes import MODES, PRECISION_MODES
from ampsweep.config.schema import PrecisionConfig
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.precision.fp32_modules import Fp32Modules, find_modules, uncover
from ampsweep.precision.support import Abilities, abilities_of, missing_ability

_NOTHING: Final = nullcontext()
_in_force: list["Precision"] = []
"""The modes whose flags are set, the innermost last. It is of the process, as the switches are: backward passes run a
checkpoint's forward again in threads of their own."""


class Precision:
    """Autocast, gradient scaling, parameter dtype and TF32 switches of one mode.

    Parts that a mode does not use are no-ops, so the loop has no branches:

    >>> precision = Precision("amp_bf16", device="cpu")
    >>> model = precision.convert(nn.Linear(4, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with precision.flags():
    ...     with precision.autocast():
    ...         loss = model(torch.ones(2, 4)).square().mean()
    ...     precision.backward(loss)
    ...     precision.unscale_(optimizer)  # only needed before clipping or reading gradients
    ...     precision.step(optimizer)
    ...     precision.update()

    A mode that computes in a new way is a subclass, named in its entry of the table of modes: `Precision(mode)` then
    makes an object of that subclass, as `pathlib.Path` makes a `PosixPath`. The subclass overrides the methods that
    differ, and calls those it overrides.

    Args:
        mode: a mode's name (`ampsweep.config.modes.MODES`) or your own settings.
        device: the device that the model trains on.

    Raises:
        ValueError: there is no such mode, or its settings are impossible on this device or on any.
    """

    casts_by_policy = False
    """True if FSDP2 casts parameters as it gathers them, in place of autocast."""

    def __new__(cls, mode: str | PrecisionConfig, device: torch.device | str) -> Self:
        own = precision_class(mode) if cls is Precision else cls
        return super().__new__(own)  # type: ignore[return-value]

    def __getnewargs__(self) -> tuple[PrecisionConfig, torch.device]:
        return self.config, self.device  # for copy and pickle

    def __init__(self, mode: str | PrecisionConfig, device: torch.device | str) -> None:
        if isinstance(mode, str):
            if mode not in PRECISION_MODES:
                raise ValueError(f"precision mode {mode!r} does not exist; allowed are {', '.join(PRECISION_MODES)}")
            mode = PRECISION_MODES[mode]
        self.config = mode
        self.device = torch.device(device)
        if reason := self.missing_ability(mode, abilities_of(self.device)):
            raise ValueError(f"{mode.mode} is not supported: {reason}")
        self.parameters_dtype: torch.dtype = getattr(torch, mode.parameters)
        self.autocast_dtype: torch.dtype = getattr(torch, mode.dtype)
        self.scaler = torch.amp.GradScaler(
            self.device.type,
            init_scale=mode.init_scale,
            growth_factor=mode.growth_factor,
            backoff_factor=mode.backoff_factor,
            growth_interval=mode.growth_interval,
            enabled=mode.grad_scaler,
        )
        self.fp32_modules: Fp32Modules | None = None
        """The modules kept in float32; None where autocast is off, or nothing is named."""
        if mode.autocast and mode.fp32_modules:
            self.fp32_modules = Fp32Modules(mode.fp32_modules, self.device.type)
        self._scales = mode.grad_scaler  # the scaler's own no-ops would cost each step microseconds
        self.scales_in_losses = False
        """True once a loss has used gradients that were scaled: it may then be infinite because of the scale."""
        self.frees_parameters = False
        """True if a backward pass frees the parameters, as FSDP2's does: it cannot be differentiated."""
        self.joins_losses = False
        """True if several losses of a forward pass go backward together, as DDP's engine wants one backward pass."""
        self._one = torch.ones((), device=self.device)
        self._begun: WeakSet[torch.optim.Optimizer] = WeakSet()

    @classmethod
    def missing_ability(cls, config: PrecisionConfig, device: Abilities) -> str | None:
        """One sentence saying why a device with these abilities cannot run these settings, or None when it can."""
        return missing_ability(config, device)

    @contextmanager
    def flags(self) -> Iterator[None]:
        """Set the mode's process-wide arithmetic switches; on leaving restore their former values.

        Inside, `ampsweep.precision.gradients` is this mode's.
        """
        with fp32_arithmetic(tf32=self.config.tf32):
            _in_force.append(self)
            try:
                yield
            finally:
                _in_force.remove(self)

    def convert(self, model: nn.Module) -> nn.Module:
        """Move `model` to the device and its floating-point parameters and buffers to the mode's dtype, in place; keep
        the modules of `precision.fp32_modules` in float32.

        Raises:
            ValueError: a pattern of `precision.fp32_modules` matches no module.
        """
        self.cover(model)
        return cast_floating_point(model.to(device=self.device), self.parameters_dtype)

    def cover(self, model: nn.Module) -> None:
        """Keep the modules of `precision.fp32_modules`, and no others, out of autocast; part of `convert`.

        Raises:
            ValueError: a pattern matches no module, in any mode.
        """
        if self.fp32_modules is not None:
            self.fp32_modules.cover(model)
        else:
            find_modules(model, self.config.fp32_modules)
            uncover(model)

    def autocast(self) -> AbstractContextManager[None]:
        """Context for the forward pass and the loss; the backward pass belongs outside it."""
        if not self.config.autocast:
            return _NOTHING
        return torch.autocast(self.device.type, self.autocast_dtype, cache_enabled=self.config.cache_enabled)

    def eval_autocast(self, how: str | None = None) -> AbstractContextManager[None]:
        """Context for evaluation: `autocast`, the training's, or `full`, none; None: as `precision.eval` says."""
        return self.autocast() if (how or self.config.eval) == "autocast" else nullcontext()

    def backward(self, *losses: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
        """Run the backward pass of each loss (scalar, attached to its graph), scaled; what they share is kept so long.

        Args:
            inputs: the leaves that get gradients; None: all.
        """
        if self.joins_losses and len(losses) > 1:
            losses = (torch.stack([*losses]).sum(),)
        for loss in losses:
            scaled: Tensor = self.scaler.scale(loss) if self._scales else loss
            scaled.backward(inputs=inputs, retain_graph=loss is not losses[-1])  # type: ignore[no-untyped-call]

    def gradients(self, loss: Tensor, inputs: Sequence[Tensor], *, create_graph: bool = True) -> tuple[Tensor, ...]:
        """Compute the gradients of a loss with respect to `inputs`, as a penalty in the loss itself needs them.

        The loss is scaled meanwhile, so that float16 gradients do not vanish, and the gradients are divided by the
        scale; nothing waits for the device. Autocast is off, as for every backward pass. The source is "Gradient
        penalty" in https://pytorch.org/docs/stable/notes/amp_examples.html.

        Args:
            loss: a scalar, attached to its graph.
            create_graph: the gradients have a graph of their own, through which the penalty can be differentiated.

        Raises:
            ValueError: they are to have one, and the backward pass frees what it leads to.
        """
        if create_graph and self.frees_parameters:
            raise ValueError("FSDP2 frees parameters after a backward pass, which cannot be differentiated; use ddp")
        with torch.autocast(self.device.type, enabled=False):
            if not self._scales:
                return torch.autograd.grad(loss, inputs, create_graph=create_graph)
            self.scales_in_losses = True
            scaled = torch.autograd.grad(self.scaler.scale(loss), inputs, create_graph=create_graph)
            one_over_scale = 1.0 / self.scaler.scale(self._one)
            return tuple(gradient * one_over_scale for gradient in scaled)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale in place; once per effective batch, before clipping."""
        if self._scales:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the optimizer step, or skip it when the scaler found a non-finite gradient."""
        if not self._scales:
            optimizer.step()
            return
        if optimizer not in self._begun:
            _begin_momentum(optimizer)
            self._begun.add(optimizer)
        self.scaler.step(optimizer)

    def found_nonfinite(self, optimizer: torch.optim.Optimizer) -> Sequence[Tensor]:
        """The flags of the optimizer's gradients, one a device, nonzero where one of them is not finite.

        There are none before `unscale_` or `step`, after `update`, and without scaler, which has no public name for
        them.
        """
        return [*self.scaler._found_inf_per_device(optimizer).values()] if self._scales else []

    def update(self) -> None:
        """Let the scaler grow or back off; once per effective batch."""
        if self._scales:
            self.scaler.update()

    def scale(self) -> Tensor | None:
        """The current scale as a 0-dim float32 tensor on the device, without waiting for it; None without scaler."""
        if not self.scaler.is_enabled():
            return None
        return self.scaler.scale(self._one)

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state; empty without scaler. Waits for the device."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Restore the scale; return a sentence for the user if only one of this mode and `state` has a scaler.

        Growth and backoff stay this mode's own. A growth tracker beyond the interval restarts at zero: torch compares
        the two for equality, so the scale would never grow again.
        """
        if self.scaler.is_enabled() and state:
            own = {key: getattr(self.config, key) for key in ("growth_factor", "backoff_factor", "growth_interval")}
            tracker = state["_growth_tracker"] % self.config.growth_interval
            self.scaler.load_state_dict(state | own | {"_growth_tracker": tracker})
            return None
        if self.scaler.is_enabled():
            return f"the checkpoint has no GradScaler state; a fresh one starts at scale {self.config.init_scale:g}"
        return "the checkpoint's GradScaler state is ignored; this run has no scaler" if state else None


def gradients(loss: Tensor, inputs: Sequence[Tensor], *, create_graph: bool = True) -> tuple[Tensor, ...]:
    """Compute the gradients of a loss for a penalty in a task's loss, in whichever mode the training is.

    See `Precision.gradients`; outside of `Precision.flags` nothing is scaled.
    """
    if _in_force:
        return _in_force[-1].gradients(loss, inputs, create_graph=create_graph)
    has_autocast = torch.amp.is_autocast_available(loss.device.type)  # the meta device has none
    with torch.autocast(loss.device.type, enabled=False) if has_autocast else _NOTHING:
        return torch.autograd.grad(loss, inputs, create_graph=create_graph)


def cast_floating_point(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast the real floating-point parameters and buffers of a model in place.

    `Module.to` would cast complex ones too, and drop their imaginary parts.
    """
    cast: nn.Module = {torch.float32: model.float, torch.bfloat16: model.bfloat16, torch.float16: model.half}[dtype]()
    return cast


def precision_class(mode: str | PrecisionConfig) -> type[Precision]:
    """Find the class that computes a mode, given by name or settings: the mode's own class, else `Precision`."""
    entry = MODES.get(mode if isinstance(mode, str) else mode.mode)
    if entry is None or entry.implementation is None:
        return Precision
    own: type[Precision] = pkgutil.resolve_name(entry.implementation)
    return own


def unsupported_reason(config: PrecisionConfig, device: torch.device) -> str | None:
    """One sentence saying why `device` cannot run these settings, or None when it can."""
    return precision_class(config).missing_ability(config, abilities_of(device))


def _begin_momentum(optimizer: torch.optim.Optimizer) -> None:
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
