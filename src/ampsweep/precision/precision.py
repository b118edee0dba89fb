"""A precision mode as one object that a training loop calls at the same places in every mode."""

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ampsweep.config.modes import (
    MODES,
    PRECISION_MODES,
    fp32_matmul,
    step_dtypes,
)
from ampsweep.config.schema import PrecisionConfig
from ampsweep.numeric_formats import dtype_name
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.precision.float8_layers import restore_layers
from ampsweep.precision.float32_update import Build, Float32Update, Keeping, begin_momentum
from ampsweep.precision.fp32_modules import FP32_MODULES, Fp32Modules, find_modules, uncover
from ampsweep.precision.pieces import HALF
from ampsweep.precision.support import Abilities, abilities_of, missing_ability
from ampsweep.record.parts import ModeProof

_NOTHING: Final = nullcontext()
_in_force: list["Precision"] = []
"""The modes whose flags are set in this process, the innermost last."""


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
    makes an object of that subclass, as `pathlib.Path` makes a `PosixPath`.

    Args:
        mode: a mode's name (`ampsweep.config.modes.MODES`) or your own settings.
        device: the device that the model trains on.

    Raises:
        ValueError: there is no such mode, or its settings are impossible on this device or on any.
    """

    keeping = Keeping.NEAREST
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
        self.emulated: str | None = None
        """`why_emulated` of the device; a prediction sets that of its target."""
        self.fp32_modules: Fp32Modules | None = None
        """The modules kept in float32; None without autocast or names."""
        if mode.autocast and mode.fp32_modules:
            self.fp32_modules = Fp32Modules(mode.fp32_modules, self.device.type)
        self._scales = mode.grad_scaler  # the scaler's own no-ops would cost each step microseconds
        self.cudnn_benchmark: bool | None = None
        """`trainer.cudnn_benchmark`; None: as it is set."""
        self.frees_parameters = False
        """True if a backward pass frees the parameters, as FSDP2's does, and cannot be differentiated."""
        self.joins_losses = False
        """True if several losses go backward together, as DDP's engine needs one backward pass."""
        self._one = torch.ones((), device=self.device)
        self._begun: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._converted_from: dict[nn.Parameter, Tensor] = {}
        """float32 values of converted parameters, until master weights are made of them."""

    @classmethod
    def missing_ability(cls, config: PrecisionConfig, device: Abilities) -> str | None:
        """One sentence saying why a device with these abilities cannot run these settings, or None when it can."""
        return missing_ability(config, device)

    @contextmanager
    def flags(self) -> Iterator[None]:
        """Set the mode's process-wide arithmetic switches; on leaving restore their former values.

        Inside, `ampsweep.precision.gradients` is this mode's.
        """
        arithmetic = fp32_arithmetic(
            matmul=fp32_matmul(self.config), tf32=self.config.tf32, cudnn_benchmark=self.cudnn_benchmark
        )
        with arithmetic:
            _in_force.append(self)
            try:
                yield
            finally:
                _in_force.remove(self)

    def convert(self, model: nn.Module) -> nn.Module:
        """Move `model` to the device and its floating-point parameters and buffers to the mode's dtype, in place.

        Raises:
            ValueError: as `adapt` does.
        """
        self.adapt(model)
        return cast_floating_point(model.to(device=self.device), self.parameters_dtype)

    def adapt(self, model: nn.Module) -> None:
        """Fit the modules of `model` to this mode alone; a part of `convert`. Names in the state dict stay as they are.

        Raises:
            ValueError: a pattern of `precision.fp32_modules` matches no module, or the mode does not fit the model.
        """
        restore_layers(model)
        if self.fp32_modules is not None:
            self.fp32_modules.cover(model)
        else:
            find_modules(model, self.config.fp32_modules)
            uncover(model)

    @classmethod
    def misfit(cls, config: PrecisionConfig, model: nn.Module) -> str | None:
        """One sentence saying why these settings do not fit a model, which may be on the meta device, or None.

        Raises:
            ValueError: a package that the mode needs is missing, or a setting is wrong for the model.
        """
        return None

    @classmethod
    def why_emulated(cls, config: PrecisionConfig, device: Abilities) -> str | None:
        """The reason why a device with these abilities computes the mode in another format, or None if it does not."""
        return None

    @property
    def region(self) -> Callable[[], str | None] | None:
        """A function that names the running part of the model whose work `prove_step` wants counted apart."""
        kept = self.fp32_modules
        return None if kept is None else lambda: FP32_MODULES if kept.running else None

    def prove(self) -> ModeProof:
        """Test the mode's own arithmetic on the device; empty where it is torch's."""
        return ModeProof()

    def prove_step(self, work: Any) -> ModeProof:
        """Collect from `work`, an `ampsweep.observe.step.TracedStep`, that of the parts that compute apart."""
        if self.fp32_modules is None:
            return ModeProof()
        return ModeProof(
            forward_flops=work.forward_flops,
            fp32_module_flops=work.region_flops.get(FP32_MODULES, {}),
            idle_fp32_modules=self.fp32_modules.idle_patterns or None,
        )

    def optimizer(
        self,
        build: Build,
        parameters: Iterable[nn.Parameter],
        *,
        state_dtype: str | None = None,
        device: torch.device | None = None,
    ) -> torch.optim.Optimizer:
        """Build an optimizer of these parameters of a converted model.

        Where parameters, gradients or state are not in float32 and the mode wants more than torch does, its update
        computes in float32, and `build` gets parameters that stand for them in float32, in their order.

        >>> precision = Precision("pure_bf16", device="cpu")
        >>> model = precision.convert(nn.Linear(4, 1))
        >>> adamw = precision.optimizer(torch.optim.AdamW, model.parameters(), state_dtype="float32")

        Args:
            state_dtype: float32 or bfloat16, in which the state is kept; None: as the mode has it.
            device: the device of the parameters that these stand for; None: their own.

        Raises:
            ValueError: the class cannot be updated so, see `Float32Update`.
        """
        parameters = [*parameters]
        if self._takes_as_they_are(parameters, state_dtype):
            return build(parameters)
        wanted = state_dtype or step_dtypes(self.config).optimizer_state
        return Float32Update(
            parameters,
            build,
            self.keeping,
            state_dtype=getattr(torch, wanted),
            values={one: self._converted_from.pop(one) for one in parameters if one in self._converted_from},
            device=device,
            seed=torch.initial_seed(),
        )

    def _require_own(self, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, Float32Update):
            return
        if any(parameter.dtype in HALF for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError(
                f"{self.config.mode} steps with an optimizer that Precision.optimizer has built, not with a "
                f"{type(optimizer).__name__} of the parameters themselves"
            )

    def _takes_as_they_are(self, parameters: Sequence[nn.Parameter], state_dtype: str | None) -> bool:
        """Return True if torch's own optimizers update these parameters as the mode wants it."""
        real = [one for one in parameters if one.is_floating_point()]
        if self.keeping is not Keeping.NEAREST and any(one.dtype != torch.float32 for one in real):
            return False
        if any(one.grad_dtype not in (None, one.dtype) for one in real):
            return False
        return state_dtype is None or all(state_dtype == dtype_name(one.dtype) for one in real)

    def autocast(self) -> AbstractContextManager[None]:
        """Context for the forward pass and the loss; the backward pass belongs outside it."""
        if not self.config.autocast:
            return _NOTHING
        return torch.autocast(self.device.type, self.autocast_dtype, cache_enabled=self.config.cache_enabled)

    def eval_autocast(self, how: str | None = None) -> AbstractContextManager[None]:
        """Context for evaluation: `autocast` or `full`; None: as `precision.eval` says."""
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

        The loss is scaled, so that float16 gradients do not vanish, and the gradients are divided by the scale, without
        waiting for the device ("Gradient penalty" in https://pytorch.org/docs/stable/notes/amp_examples.html).

        Args:
            loss: a scalar, attached to its graph.
            create_graph: let the gradients be differentiated.

        Raises:
            ValueError: they are to be, and the backward pass frees the parameters.
        """
        if create_graph and self.frees_parameters:
            raise ValueError("FSDP2 frees parameters after a backward pass, which cannot be differentiated; use ddp")
        with torch.autocast(self.device.type, enabled=False):
            if not self._scales:
                return torch.autograd.grad(loss, inputs, create_graph=create_graph)
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
            begin_momentum(optimizer)
            self._begun.add(optimizer)
        self.scaler.step(optimizer)

    def found_nonfinite(self, optimizer: torch.optim.Optimizer) -> Sequence[Tensor]:
        """The flags of the optimizer's gradients, one a device, nonzero where one of them is not finite.

        There are some between `unscale_` or `step` and `update` only. The scaler has no public name for them.
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

        Growth and backoff stay this mode's own. torch compares the growth tracker with the interval for equality:
        beyond it the scale would never grow again.
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
    """The class that computes a mode, given by name or settings."""
    entry = MODES.get(mode if isinstance(mode, str) else mode.mode)
    if entry is None or entry.implementation is None:
        return Precision
    own: type[Precision] = pkgutil.resolve_name(entry.implementation)
    return own


def unsupported_reason(config: PrecisionConfig, device: torch.device) -> str | None:
    """One sentence saying why `device` cannot run these settings, or None when it can."""
    return precision_class(config).missing_ability(config, abilities_of(device))


def why_emulated(config: PrecisionConfig, device: torch.device) -> str | None:
    """The reason why `device` computes a mode in another format, or None; see `Precision.why_emulated`."""
    return precision_class(config).why_emulated(config, abilities_of(device))


def misfit(config: PrecisionConfig, model: nn.Module) -> str | None:
    """One sentence saying why these settings do not fit a model, or None; see `Precision.misfit`."""
    return precision_class(config).misfit(config, model)
