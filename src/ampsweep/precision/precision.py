"""A precision mode as one object that a training loop calls at the same places in every mode."""

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ampsweep.config.modes import MODES, PRECISION_MODES, fp32_matmul, step_dtypes
from ampsweep.config.schema import PrecisionConfig
from ampsweep.numeric_formats import dtype_name
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.precision.float8_layers import restore_layers
from ampsweep.precision.float32_update import Build, Float32Update, Keeping, begin_momentum
from ampsweep.precision.fp32_modules import FP32_MODULES, Fp32Modules, find_modules, uncover
from ampsweep.precision.parameter_chunks import HALF
from ampsweep.precision.support import Abilities, abilities_of, missing_ability
from ampsweep.records.sections import ModeProof

_NOTHING: Final = nullcontext()
_in_force: list["Precision"] = []
"""The modes whose flags are set in this process, the innermost last."""


class Precision:
    """Autocast, gradient scaling, parameter dtype and TF32 switches of a mode.

    Calls that a mode does not need are no-ops, so the loop has no branches:

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

    A mode that computes in a new way is a subclass, named in the table of modes: `Precision(mode)` returns an object of
    that subclass, as `pathlib.Path` returns a `PosixPath`.

    Args:
        mode: a mode's name (`ampsweep.config.modes.MODES`) or your own settings.
        device: the device that the model trains on.

    Raises:
        ValueError: there is no such mode, or its settings are impossible on this device.
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
        self._growth = {key: getattr(mode, key) for key in ("growth_factor", "backoff_factor", "growth_interval")}
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=mode.init_scale, enabled=mode.grad_scaler, **self._growth
        )
        self.emulated: str | None = None
        """`why_emulated` of the device; a prediction sets that of its target."""
        self.fp32_modules: Fp32Modules | None = None
        """The modules kept in float32; None without autocast or patterns."""
        if mode.autocast and mode.fp32_modules:
            self.fp32_modules = Fp32Modules(mode.fp32_modules, self.device.type)
        self._scales = mode.grad_scaler  # the scaler's own no-ops would cost each step microseconds
        self.cudnn_benchmark: bool | None = None
        """`trainer.cudnn_benchmark`; None leaves the switch alone."""
        self.frees_parameters = False
        """True if a backward pass frees the parameters, as FSDP2's does, and so cannot be differentiated."""
        self.joins_losses = False
        """True if several losses need a common backward pass, as with DDP."""
        self._one = torch.ones((), device=self.device)
        self._begun: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._converted_from: dict[nn.Parameter, Tensor] = {}
        """Float32 values of converted parameters for their master weights."""

    @classmethod
    def missing_ability(cls, config: PrecisionConfig, device: Abilities) -> str | None:
        """A sentence on why a device with these abilities cannot run these settings; None if it can."""
        return missing_ability(config, device)

    @contextmanager
    def flags(self) -> Iterator[None]:
        """Set the mode's process-wide arithmetic switches inside, and restore them on leaving.

        Inside, `ampsweep.precision.gradients` uses this mode.
        """
        matmul, tf32 = fp32_matmul(self.config), self.config.tf32
        with fp32_arithmetic(matmul=matmul, tf32=tf32, cudnn_benchmark=self.cudnn_benchmark):
            _in_force.append(self)
            try:
                yield
            finally:
                _in_force.remove(self)

    def convert(self, model: nn.Module) -> nn.Module:
        """Move `model` to the device and its floating-point values to the mode's dtype, in place, after `adapt`."""
        self.adapt(model)
        return cast_floating_point(model.to(device=self.device), self.parameters_dtype)

    def adapt(self, model: nn.Module) -> None:
        """Adapt the modules of `model` to this mode, and undo the adaptations of any other; a part of `convert`.

        Names in the state dict stay as they are. Raises a ``ValueError`` if a pattern of `precision.fp32_modules`
        matches no module, or the mode does not fit the model.
        """
        restore_layers(model)
        if self.fp32_modules is not None:
            self.fp32_modules.cover(model)
        else:
            find_modules(model, self.config.fp32_modules)
            uncover(model)

    @classmethod
    def misfit(cls, config: PrecisionConfig, model: nn.Module) -> str | None:
        """A sentence on why these settings do not fit a model, which may be on the meta device; None if they do.

        Raises a ``ValueError`` if a package that the mode needs is missing, or a setting is wrong for the model.
        """
        return None

    @classmethod
    def why_emulated(cls, config: PrecisionConfig, device: Abilities) -> str | None:
        """The reason why a device with these abilities computes the mode in another format; None if it does not."""
        return None

    @property
    def region(self) -> Callable[[], str | None] | None:
        """A function that names the running region of the model that `prove_step` counts separately."""
        kept = self.fp32_modules
        return None if kept is None else lambda: FP32_MODULES if kept.depth else None

    def prove(self) -> ModeProof:
        """Test the mode's own arithmetic on the device; empty if it is torch's."""
        return ModeProof()

    def prove_step(self, work: Any) -> ModeProof:
        """The proof from the regions of `work`, an `ampsweep.observe.step.TracedStep`."""
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
        """Build an optimizer for parameters of a converted model.

        If parameters, gradients or state are narrower than float32 and torch's own update would not do, the update
        computes in float32, and `build` gets float32 stand-ins for the parameters, in their order.

        >>> precision = Precision("pure_bf16", device="cpu")
        >>> model = precision.convert(nn.Linear(4, 1))
        >>> adamw = precision.optimizer(torch.optim.AdamW, model.parameters(), state_dtype="float32")

        Args:
            state_dtype: float32 or bfloat16, for the state; None is the mode's own.
            device: the device that the parameters will be on; None is their own.

        Raises:
            ValueError: `Float32Update` does not support the class.
        """
        parameters = [*parameters]
        if self._suits_torch(parameters, state_dtype):
            return build(parameters)
        wanted = state_dtype or step_dtypes(self.config).optimizer_state
        return Float32Update(
            parameters,
            build,
            self.keeping,
            state_dtype=getattr(torch, wanted),
            values={p: self._converted_from.pop(p) for p in parameters if p in self._converted_from},
            device=device,
            seed=torch.initial_seed(),
        )

    def _require_own(self, optimizer: torch.optim.Optimizer) -> None:
        is_own = isinstance(optimizer, Float32Update)
        if not is_own and any(p.dtype in HALF for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                f"{self.config.mode} steps with an optimizer that Precision.optimizer has built, not with a "
                f"{type(optimizer).__name__} of the parameters themselves"
            )

    def _suits_torch(self, parameters: Sequence[nn.Parameter], state_dtype: str | None) -> bool:
        """Return True if torch's own optimizers update these parameters as the mode requires."""
        real = [parameter for parameter in parameters if parameter.is_floating_point()]
        if self.keeping is not Keeping.NEAREST and any(parameter.dtype != torch.float32 for parameter in real):
            return False
        if any(parameter.grad_dtype not in (None, parameter.dtype) for parameter in real):
            return False
        return state_dtype is None or all(state_dtype == dtype_name(parameter.dtype) for parameter in real)

    def autocast(self) -> AbstractContextManager[None]:
        """Context for the forward pass and the loss; the backward pass belongs outside it."""
        if not self.config.autocast:
            return _NOTHING
        return torch.autocast(self.device.type, self.autocast_dtype, cache_enabled=self.config.cache_enabled)

    def eval_autocast(self, how: str | None = None) -> AbstractContextManager[None]:
        """Context for evaluation: `autocast` or `full`; None is `precision.eval`."""
        return self.autocast() if (how or self.config.eval) == "autocast" else nullcontext()

    def backward(self, *losses: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
        """Run the scaled backward pass of each scalar loss; they may share a graph. `inputs` limits the leaves that get
        gradients."""
        if self.joins_losses and len(losses) > 1:
            losses = (torch.stack([*losses]).sum(),)
        for loss in losses:
            scaled: Tensor = self.scaler.scale(loss) if self._scales else loss
            scaled.backward(inputs=inputs, retain_graph=loss is not losses[-1])  # type: ignore[no-untyped-call]

    def gradients(self, loss: Tensor, inputs: Sequence[Tensor], *, create_graph: bool = True) -> tuple[Tensor, ...]:
        """Compute the gradients of a scalar loss with respect to `inputs` for a gradient penalty in the loss itself.

        The loss is scaled, so that float16 gradients do not vanish, and the gradients are divided by the scale, without
        waiting for the device ("Gradient penalty" in https://pytorch.org/docs/stable/notes/amp_examples.html). With
        `create_graph` they are differentiable; a ``ValueError`` is raised if the backward pass frees the parameters.
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
        """Divide the gradients by the scale in place, once per effective batch, before clipping."""
        if self._scales:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the optimizer step, or skip it if the scaler found a non-finite gradient."""
        if not self._scales:
            optimizer.step()
            return
        if optimizer not in self._begun:
            begin_momentum(optimizer)
            self._begun.add(optimizer)
        self.scaler.step(optimizer)

    def found_nonfinite(self, optimizer: torch.optim.Optimizer) -> Sequence[Tensor]:
        """A flag for each device, nonzero if a gradient of the optimizer is not finite there.

        Empty except between `unscale_` or `step` and `update`; the scaler has no public name for the flags.
        """
        return [*self.scaler._found_inf_per_device(optimizer).values()] if self._scales else []

    def update(self) -> None:
        """Let the scaler grow or back off, once per effective batch."""
        if self._scales:
            self.scaler.update()

    def scale(self) -> Tensor | None:
        """The current scale (0-dim float32 on the device), without waiting for the device; None without scaler."""
        if not self.scaler.is_enabled():
            return None
        return self.scaler.scale(self._one)

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state; empty without scaler. Waits for the device."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Restore the scale; return a sentence for the user if only this mode or only `state` has a scaler.

        Growth and backoff stay those of this mode. torch compares the growth tracker with the interval for equality:
        from beyond the interval the scale would never grow again.
        """
        if self.scaler.is_enabled() and state:
            tracker = state["_growth_tracker"] % self.config.growth_interval
            self.scaler.load_state_dict(state | self._growth | {"_growth_tracker": tracker})
            return None
        if self.scaler.is_enabled():
            return f"the checkpoint has no GradScaler state; a fresh one starts at scale {self.config.init_scale:g}"
        return "the checkpoint's GradScaler state is ignored; this run has no scaler" if state else None


def gradients(loss: Tensor, inputs: Sequence[Tensor], *, create_graph: bool = True) -> tuple[Tensor, ...]:
    """`Precision.gradients` of the mode in training; outside of `Precision.flags` nothing is scaled."""
    if _in_force:
        return _in_force[-1].gradients(loss, inputs, create_graph=create_graph)
    has_autocast = torch.amp.is_autocast_available(loss.device.type)  # the meta device has none
    with torch.autocast(loss.device.type, enabled=False) if has_autocast else _NOTHING:
        return torch.autograd.grad(loss, inputs, create_graph=create_graph)


def cast_floating_point(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast real floating-point parameters and buffers in place; `Module.to` would cast complex ones, too."""
    return {torch.float32: model.float, torch.bfloat16: model.bfloat16, torch.float16: model.half}[dtype]()


def precision_class(mode: str | PrecisionConfig) -> type[Precision]:
    """The class that computes a mode, given by name or settings."""
    entry = MODES.get(mode if isinstance(mode, str) else mode.mode)
    if entry is None or entry.implementation is None:
        return Precision
    own: type[Precision] = pkgutil.resolve_name(entry.implementation)
    return own


def unsupported_reason(config: PrecisionConfig, device: torch.device) -> str | None:
    """See `Precision.missing_ability`."""
    return precision_class(config).missing_ability(config, abilities_of(device))


def why_emulated(config: PrecisionConfig, device: torch.device) -> str | None:
    """See `Precision.why_emulated`."""
    return precision_class(config).why_emulated(config, abilities_of(device))
