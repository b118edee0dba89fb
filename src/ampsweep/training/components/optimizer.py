"""The optimizers of a run: any class by its `_target_`, parameter groups, and fused kernels where torch has them."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.modes import without_fp32_arithmetic
from ampsweep.config.schema import PrecisionConfig, component_name
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.feeding import unseen
from ampsweep.observe.operators import FakeTensor, has_kernel, on_real_tensors, without_modes
from ampsweep.precision import Precision
from ampsweep.precision.float32_update import class_of
from ampsweep.text import one_line
from ampsweep.training.components.instantiate import build_component, locate, parameters_of

_NOT_ARGUMENTS: Final = ("_target_", "name", "groups", "each", "state_dtype")
_OWN_DEFAULT: Final = ("lr", "weight_decay", "fused", "foreach", "capturable")  # null means the default of the class
_KERNELS: Final = ("fused", "foreach", "capturable", "differentiable")  # each for the whole optimizer
_FUSED_FOR_SHARDS: Final = (torch.optim.Adam, torch.optim.AdamW)  # take shards, such as FSDP2's (torch 2.11 to 2.15)
MAX_GRAD_NORM: Final = "max_grad_norm"
"""Key of a group whose gradients are clipped to a 2-norm of their own, by the trainer."""
_NEEDS_CLOSURE: Final = (
    ": its step needs a closure that computes the loss again, and a training step computes it once; choose another, "
    "such as adamw, or record a loop of your own with ampsweep.record"
)
_CLIMBS: Final = (
    ": it takes two steps with the loss at two places (SAM); let the task do that, as in docs/workloads.md "
    '("Sharpness-aware minimization"), and choose its base optimizer'
)


def build_optimizers(
    config: Mapping[str, Any],
    model: nn.Module,
    trains: Mapping[str, Sequence[str]],
    precision: Precision,
    *,
    device: torch.device | None = None,
) -> dict[str, Optimizer]:
    """Build each optimizer over the trainable parameters whose names match its patterns in `trains` (as for `fnmatch`).

    `device` is the device to choose kernels for, if the parameters only stand in for parameters on it. Raises a
    UserError if the class refuses the settings, if they match no parameter, or if not exactly one optimizer trains a
    trainable parameter.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return _build(config, model, parameters, trains, precision, device)


def rehearse_optimizers(
    config: Mapping[str, Any],
    model: nn.Module,
    trains: Mapping[str, Sequence[str]],
    *,
    precision: PrecisionConfig,
    device: torch.device,
) -> dict[str, Optimizer]:
    """Build the optimizers on the CPU over tiny parameters named like the model's, and let each take a step.

    The model may be on the meta device. Raises a UserError as `build_optimizers` would on `device`, or if a step fails.
    """
    on_cpu, tiny = Precision(without_fp32_arithmetic(precision), "cpu"), {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            dtype = on_cpu.parameters_dtype if parameter.is_floating_point() else parameter.dtype
            tiny[name] = nn.Parameter(torch.full([min(size, 2) for size in parameter.shape], 0.5, dtype=dtype))
            tiny[name].grad = torch.full_like(tiny[name], 0.5)
    with torch.random.fork_rng(devices=[]):
        try:
            optimizers = _build(config, model, tiny, trains, on_cpu, device, rehearses=True)
        except UserError:  # repeat with the model's parameters, since the message may mention sizes
            build_optimizers(config, model, trains, on_cpu, device=device)
            raise
        for name, optimizer in optimizers.items():
            try:
                optimizer.step()
            except Exception as error:  # the user's own class may raise anything
                label, text = component_name(settings_of(config, name)), one_line(error)
                needs = _NEEDS_CLOSURE if "closure" in text else f" cannot take a step: {text}"
                raise UserError(f"optimizer={label}{needs}") from error
    return optimizers


def has_fused_kernels(target: Any, device: str) -> bool:
    """Return True if torch has fused kernels for its own optimizer class `target` on a type of device.

    All have them on CUDA (torch 2.11 to 2.13), which this build of torch may lack.
    """
    operator = f"_fused_{getattr(target, '__name__', '').lower()}_"
    return hasattr(torch.ops.aten, operator) and (device == "cuda" or has_kernel(f"aten::{operator}", device.upper()))


def is_fused(optimizer: Optimizer) -> bool:
    """Return True if the optimizer itself skips steps with non-finite gradients, on the device, as torch's fused do."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def class_name(optimizer: Optimizer) -> str:
    """Return the name of the optimizer's class, with its module unless it is torch's own."""
    own = class_of(optimizer)
    is_torchs = getattr(torch.optim, own.__name__, None) is own
    return own.__name__ if is_torchs else f"{own.__module__}.{own.__qualname__}"


def clipped_together(optimizer: Optimizer, max_norm: float | None) -> list[tuple[list[Tensor], float | None]]:
    """Return the parameters whose gradients are clipped as one vector, and its limit: each group with its own limit,
    after all others, which share `max_norm`."""
    groups = optimizer.param_groups
    own = [(group["params"], float(group[MAX_GRAD_NORM])) for group in groups if MAX_GRAD_NORM in group]
    rest = [parameter for group in groups if MAX_GRAD_NORM not in group for parameter in group["params"]]
    return [*([(rest, max_norm)] if rest else []), *own]


def learning_rate(optimizer: Optimizer) -> float | None:
    """Return the optimizer's learning rate before any schedule; None if it has none."""
    rate = optimizer.defaults.get("lr", optimizer.param_groups[0].get("lr"))
    return None if rate is None else float(rate)


def settings_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the common settings (for another class, those that any class has) overridden by `optimizer.each.NAME`."""
    own: dict[str, Any] = (config.get("each") or {}).get(name, {})
    common = dict(config)
    if own.get("_target_", config["_target_"]) != config["_target_"]:
        common = {key: config[key] for key in (*_OWN_DEFAULT, "groups", "state_dtype") if key in config}
    return common | own


def _build(
    config: Mapping[str, Any],
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    trains: Mapping[str, Sequence[str]],
    precision: Precision,
    device: torch.device | None,
    *,
    rehearses: bool = False,
) -> dict[str, Optimizer]:
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise UserError(f"{name or 'the model'} is an embedding with sparse=True; gradients here are dense")
    if not parameters:
        raise UserError("the model has no parameters to train")
    overrides = config.get("each") or {}
    for name in overrides:
        if name not in trains:
            raise UserError(f"optimizer.each.{name}: there is no such optimizer; the task has {', '.join(trains)}")
    assigned = _assign(parameters, trains)
    _check_patterns("optimizer", config.get("groups") or [], parameters)
    optimizers = {}
    for name, names in assigned.items():
        key = f"optimizer.each.{name}" if name in overrides else "optimizer"
        settings = settings_of(config, name)
        own = {parameter: parameters[parameter] for parameter in names}
        if "groups" in overrides.get(name, {}):
            _check_patterns(key, settings["groups"], own)
        optimizers[name] = _OptimizerBuilder(key, settings, own, precision, device, rehearses).build()
    return optimizers


def _assign(parameters: Iterable[str], trains: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Assign each parameter to the only optimizer that trains it."""
    assigned: dict[str, list[str]] = {name: [] for name in trains}
    for parameter in parameters:
        names = [name for name, patterns in trains.items() if _matches(parameter, patterns)]
        if not names:
            known = ", ".join(f"{name} for {' '.join(patterns)}" for name, patterns in trains.items())
            raise UserError(
                f"no optimizer trains {parameter}; the task has {known}, and requires_grad=False freezes a parameter"
            )
        if len(names) > 1:
            raise UserError(f"{parameter} is trained by two optimizers, {names[0]} and {names[1]}")
        assigned[names[0]].append(parameter)
    for name, own in assigned.items():
        if not own:
            raise UserError(f"the optimizer {name} trains no parameter: none matches {', '.join(trains[name])}")
    return assigned


def _check_patterns(key: str, groups: Sequence[Mapping[str, Any]], parameters: Iterable[str]) -> None:
    """Refuse a pattern that matches no parameter, and a group whose parameters all belong to earlier groups."""
    left = list(parameters)
    for number, group in enumerate(groups):
        for pattern in group["match"]:
            if not any(fnmatchcase(name, pattern) for name in parameters):
                raise UserError(f"{key}.groups[{number}].match: no parameter to train is called {pattern}")
        rest = [name for name in left if not _matches(name, group["match"])]
        if rest == left:
            raise UserError(f"{key}.groups[{number}]: the groups before it take all parameters that it matches")
        left = rest


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class _OptimizerBuilder:
    """Builds one optimizer; `key` is the config key of its settings."""

    key: str
    settings: Mapping[str, Any]
    parameters: Mapping[str, nn.Parameter]
    precision: Precision
    device: torch.device | None
    rehearses: bool  # choose no kernels, as the parameters are on another device than those they stand in for

    def build(self) -> Optimizer:
        state_dtype = self.settings.get("state_dtype")
        try:
            return self.precision.optimizer(
                self._build_over, self.parameters.values(), state_dtype=state_dtype, device=self.device
            )
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UnsupportedError(f"{self.key}={self._name()}: {error}") from error

    def _build_over(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """Build the optimizer over parameters that are, or stand in for, those of the model."""
        return replace(self, parameters=dict(zip(self.parameters, parameters, strict=True)))._build()

    def _build(self) -> Optimizer:
        target = locate(self.key, dict(self.settings))
        arguments = self._arguments(target)
        groups = self._groups(arguments.get("betas"))
        own = {key for group in groups if isinstance(group, dict) for key in group}
        component = {"_target_": self.settings["_target_"], "name": self._name(), **arguments}
        optimizer = build_component(self.key, component, groups)
        if not isinstance(optimizer, Optimizer):
            kind = type(optimizer).__name__
            raise UserError(f"{self.key}._target_={self.settings['_target_']} gave a {kind}, not a torch Optimizer")
        known = {key for key in optimizer.defaults if key not in _KERNELS} | {MAX_GRAD_NORM}
        for key in sorted(own - known - {"params"}):
            raise UserError(
                f"{self.key}.groups: {type(optimizer).__name__} has no hyperparameter {key} that a group can have; "
                f"allowed are {', '.join(sorted(known))}"
            )
        taken = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in self.parameters.items():
            if parameter not in taken:
                raise UserError(f"{self.key}={self._name()} does not train {name}, which it was given")
        if hasattr(optimizer, "first_step") and hasattr(optimizer, "second_step"):
            raise UserError(f"{self.key}={self._name()}{_CLIMBS}")
        if _needs_closure(optimizer):
            raise UserError(f"{self.key}={self._name()}{_NEEDS_CLOSURE}")
        if type(optimizer).__module__ == "torchao.optim.adam":  # with a state of 8 or 4 bits (torchao 0.18)
            with on_real_tensors():  # its tables, which it caches for the whole process, are not a prediction's
                for tables in map(import_module, ("torchao.optim.subclass_4bit", "torchao.optim.subclass_8bit")):
                    tables.get_qmap_signed()
                    tables.get_qmap_unsigned()
            device = self.device or next(iter(self.parameters.values())).device
            step = partial(_step_of_torchaos, optimizer, is_compiled=device.type == "cuda" and not self.rehearses)
            optimizer.step = step  # type: ignore[method-assign,assignment]
        return optimizer

    def _name(self) -> str:
        return component_name(dict(self.settings))

    def _arguments(self, target: Any) -> dict[str, Any]:
        given = {key: value for key, value in self.settings.items() if key not in _NOT_ARGUMENTS}
        given = {key: value for key, value in given.items() if value is not None or key not in _OWN_DEFAULT}
        taken = parameters_of(target)
        takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())
        for key in _KERNELS:
            if key in given and not (key in taken or takes_any):
                raise UserError(f"{self.key}.{key}={str(given[key]).lower()}: {self._name()} has no such argument")
        given |= self._fused(target, given)
        if self.rehearses:
            given = {key: value for key, value in given.items() if key not in _KERNELS}
        takes_pair = "betas" in taken and "beta1" not in taken
        return _with_pair(given, taken["betas"].default) if takes_pair else given

    def _fused(self, target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, bool]:
        """Choose fused kernels if the user has not chosen and torch has them for its own class on the device."""
        if getattr(target, "__module__", "").partition(".")[0] != "torch":
            return {}
        device = self.device or next(iter(self.parameters.values())).device
        why_not = self._why_not_fused(target, device)
        if given.get("fused") and why_not is not None:
            raise UserError(f"{self.key}.fused=true: {why_not}")
        is_chosen = "fused" in given or any(given.get(key) for key in _KERNELS)
        return {} if is_chosen or why_not is not None else {"fused": True}

    def _why_not_fused(self, target: Callable[..., Any], device: torch.device) -> str | None:
        """Return why fused kernels of torch's own class cannot be used here, as a clause, or None."""
        is_sharded = any(hasattr(p, "device_mesh") for p in self.parameters.values())  # DTensors
        if not has_fused_kernels(target, device.type) or (is_sharded and target not in _FUSED_FOR_SHARDS):
            return f"torch has no fused {target.__name__} on {device.type}"
        if device.type == "cpu" and target is torch.optim.SGD:
            for dtype in {p.dtype for p in self.parameters.values()} & {torch.bfloat16, torch.float16}:
                # A bug of torch 2.13, in elements that fill a vector register.
                return f"on a CPU the step of torch's fused SGD leaves parameters in {dtype_name(dtype)} as they are"
        for name, parameter in self.parameters.items():
            if not parameter.is_floating_point():
                return f"torch fuses no step of complex {name}"
        return None

    def _groups(self, betas: Any) -> list[Any]:
        """Return the parameters that no group matches, then the groups in their order."""
        left = dict(self.parameters)
        groups: list[dict[str, Any]] = []
        for group in self.settings.get("groups") or ():
            own = [left.pop(name) for name in self.parameters if name in left and _matches(name, group["match"])]
            if own:
                settings = {key: value for key, value in group.items() if key != "match"}
                groups.append({"params": own, **_with_pair(settings, betas)})
        rest = [*left.values()]
        if not groups:
            return rest
        return [{"params": rest}, *groups] if rest else groups


def _step_of_torchaos(optimizer: Optimizer, *, is_compiled: bool) -> None:
    """Take a step of a torchao optimizer such that traced steps compute the same as all others.

    torchao calls `torch.compile` for each parameter, which rounds differently from eager code and does not compile
    within a trace. On CUDA, every step is therefore compiled, outside of any trace (which does not see its operators);
    a prediction computes only sizes. On other devices every step is eager, to save seconds of compilation.
    """
    is_predicted = isinstance(optimizer.param_groups[0]["params"][0], FakeTensor)
    outside = nullcontext() if not is_compiled else unseen() if is_predicted else without_modes()
    with outside, torch.compiler.set_stance("default" if is_compiled and not is_predicted else "force_eager"):
        type(optimizer).step(optimizer)


def _needs_closure(optimizer: Optimizer) -> bool:
    parameters = inspect.signature(optimizer.step).parameters.values()
    ordinary = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.default is inspect.Parameter.empty and p.kind in ordinary for p in parameters)


def _with_pair(arguments: dict[str, Any], default: Any) -> dict[str, Any]:
    """Join `beta1` and `beta2`, which can be set separately, to the pair `betas` that the class takes."""
    if not ({"beta1", "beta2"} & arguments.keys() and isinstance(default, list | tuple)):
        return arguments
    rest = {key: value for key, value in arguments.items() if key not in ("beta1", "beta2")}
    return rest | {"betas": (arguments.get("beta1", default[0]), arguments.get("beta2", default[1]))}
