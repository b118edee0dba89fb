"""The optimizers of a run: any class by its `_target_`, its parameter groups, fused kernels where torch has them."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.modes import without_fp32_arithmetic
from ampsweep.config.schema import PrecisionConfig, component_name
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.feeding import unseen
from ampsweep.observe.operators import FakeTensor, on_real_tensors, without_modes
from ampsweep.precision import Precision
from ampsweep.precision.float32_update import class_of
from ampsweep.text import one_line
from ampsweep.training.components.fused_kernels import FUSED_FOR_SHARDS, has_fused_kernels
from ampsweep.training.components.instantiate import build_component, locate, parameters_of

_NOT_ARGUMENTS: Final = ("name", "groups", "each", "state_dtype")
_OWN_DEFAULT: Final = ("lr", "weight_decay", "fused", "foreach", "capturable")
"""Keys whose null leaves the value to the class."""
_HALF: Final = frozenset({torch.bfloat16, torch.float16})
_TORCHAOS: Final = "torchao.optim.adam"
"""The module of torchao's optimizers, which keep their states in 8 or 4 bits (torchao 0.18)."""
_KERNELS: Final = ("fused", "foreach", "capturable", "differentiable")
"""Arguments that choose an implementation, which is one for the whole optimizer."""


def build_optimizers(
    config: Mapping[str, Any],
    model: nn.Module,
    trains: Mapping[str, Sequence[str]],
    precision: Precision,
    *,
    device: torch.device | None = None,
) -> dict[str, Optimizer]:
    """Build each optimizer over the trainable parameters whose names its patterns match.

    Args:
        config: `optimizer.*` of a config: `_target_`, its arguments, and the keys of `OptimizerConfig`.
        trains: patterns (as of `fnmatch`) of parameter names for each optimizer's name.
        precision: the mode that has converted the model.
        device: the device whose kernels are to be chosen, where parameters only stand for those on it.

    Raises:
        UserError: the settings are refused, by the class or because they fit no parameter; a trainable parameter is
            trained by no optimizer or by two.
    """
    parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
    _require_dense_gradients(model)
    return _build(config, parameters, trains, precision, device)


def rehearse_optimizers(
    config: Mapping[str, Any],
    model: nn.Module,
    trains: Mapping[str, Sequence[str]],
    *,
    precision: PrecisionConfig,
    device: torch.device,
) -> dict[str, Optimizer]:
    """Build the optimizers on the CPU, over tiny parameters with the names of the model's, and let each take a step.

    The model may be on the meta device. What is decided for `device` is decided so here, apart from its kernels.

    Raises:
        UserError: the settings are refused, by the class or because they fit no parameter, or the step fails.
    """
    _require_dense_gradients(model)
    on_cpu, tiny = Precision(without_fp32_arithmetic(precision), "cpu"), {}
    for name, one in model.named_parameters():
        if one.requires_grad:
            values = torch.full([min(size, 2) for size in one.shape], 0.5, dtype=_dtype(one, on_cpu.parameters_dtype))
            tiny[name] = nn.Parameter(values)
    for parameter in tiny.values():
        parameter.grad = torch.full_like(parameter, 0.5)
    with torch.random.fork_rng(devices=[]):
        try:
            optimizers = _build(config, tiny, trains, on_cpu, device, rehearses=True)
        except UserError:  # the class may speak of sizes, which are those of the model's own parameters
            build_optimizers(config, model, trains, on_cpu, device=device)
            raise
        for name, optimizer in optimizers.items():
            try:
                optimizer.step()
            except Exception as error:  # the class may be the user's own, and raise anything
                named = component_name(settings_of(config, name))
                raise UserError(f"optimizer={named} cannot take a step: {one_line(error)}") from error
    return optimizers


def _require_dense_gradients(model: nn.Module) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise UserError(f"{name or 'the model'} is an embedding with sparse=True; gradients here are dense")


def _dtype(parameter: nn.Parameter, dtype: torch.dtype) -> torch.dtype:
    return dtype if parameter.is_floating_point() else parameter.dtype


def is_fused(optimizer: Optimizer) -> bool:
    """Tell whether the optimizer itself skips the step of a non-finite gradient: on the device, unseen by the host.

    torch's fused optimizers do; `_step_supports_amp_scaling` is how an optimizer tells a GradScaler, and its only sign.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def class_name(optimizer: Optimizer) -> str:
    """The name of the optimizer's class: torch's own have no module before it, all others have theirs."""
    own = class_of(optimizer)
    is_torchs = getattr(torch.optim, own.__name__, None) is own
    return own.__name__ if is_torchs else f"{own.__module__}.{own.__qualname__}"


def learning_rate(optimizer: Optimizer) -> float | None:
    """The optimizer's learning rate, before any schedule; None where it has none."""
    rate = optimizer.defaults.get("lr", optimizer.param_groups[0].get("lr"))
    return None if rate is None else float(rate)


def settings_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings of one optimizer: the common ones with those of `optimizer.each.NAME` in their place.

    Another class takes over what every class may have; the arguments of the common class are not its own.
    """
    own: dict[str, Any] = (config.get("each") or {}).get(name, {})
    common = dict(config)
    if own.get("_target_", config["_target_"]) != config["_target_"]:
        common = {key: config[key] for key in (*_OWN_DEFAULT, "groups", "state_dtype") if key in config}
    return common | own


def _build(
    config: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    trains: Mapping[str, Sequence[str]],
    precision: Precision,
    device: torch.device | None,
    *,
    rehearses: bool = False,
) -> dict[str, Optimizer]:
    if not parameters:
        raise UserError("the model has no parameters to train")
    own = config.get("each") or {}
    for name in own:
        if name not in trains:
            raise UserError(f"optimizer.each.{name}: there is no such optimizer; the task has {', '.join(trains)}")
    share = _shares(parameters, trains)
    _check_patterns("optimizer", config.get("groups") or [], parameters)
    found = {}
    for name, names in share.items():
        key = f"optimizer.each.{name}" if name in own else "optimizer"
        settings = settings_of(config, name)
        mine = {one: parameters[one] for one in names}
        if "groups" in own.get(name, {}):
            _check_patterns(key, settings["groups"], mine)
        found[name] = _OneOptimizer(key, settings, mine, precision, device, rehearses).build()
    return found


def _shares(parameters: Iterable[str], trains: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Give each parameter to the one optimizer that trains it.

    Raises:
        UserError: none does, or two do; or an optimizer trains none.
    """
    shares: dict[str, list[str]] = {name: [] for name in trains}
    for parameter in parameters:
        takers = [name for name, patterns in trains.items() if _matches(parameter, patterns)]
        if not takers:
            raise UserError(
                f"no optimizer trains {parameter}; the task has {_described(trains)}, and requires_grad=False freezes "
                "a parameter"
            )
        if len(takers) > 1:
            raise UserError(f"{parameter} is trained by two optimizers, {takers[0]} and {takers[1]}")
        shares[takers[0]].append(parameter)
    for name, mine in shares.items():
        if not mine:
            raise UserError(f"the optimizer {name} trains no parameter: none matches {', '.join(trains[name])}")
    return shares


def _described(trains: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name} for {' '.join(patterns)}" for name, patterns in trains.items())


def _check_patterns(key: str, groups: Sequence[Mapping[str, Any]], parameters: Iterable[str]) -> None:
    """Refuse a pattern that matches no parameter, and a group whose parameters earlier groups have taken."""
    left = list(parameters)
    for number, group in enumerate(groups):
        for pattern in group["match"]:
            if not _matching(parameters, [pattern]):
                raise UserError(f"{key}.groups[{number}].match: no parameter to train is called {pattern}")
        mine = _matching(left, group["match"])
        if not mine:
            raise UserError(f"{key}.groups[{number}]: the groups before it take all parameters that it matches")
        left = [name for name in left if name not in mine]


def _matching(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    return {name for name in names if _matches(name, patterns)}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class _OneOptimizer:
    """One optimizer to build; `key` is the config's key of its settings."""

    key: str
    settings: Mapping[str, Any]
    parameters: Mapping[str, nn.Parameter]
    precision: Precision
    device: torch.device | None
    rehearses: bool
    """No kernels are chosen: parameters of one device stand for those of another."""

    def build(self) -> Optimizer:
        state_dtype = self.settings.get("state_dtype")
        try:
            return self.precision.optimizer(
                self._of, self.parameters.values(), state_dtype=state_dtype, device=self.device
            )
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UnsupportedError(f"{self.key}={self._name()}: {error}") from error

    def _of(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """Build the class's optimizer of parameters that are, or stand for, those of the model."""
        return replace(self, parameters=dict(zip(self.parameters, parameters, strict=True)))._build()

    def _build(self) -> Optimizer:
        target = locate(self.key, dict(self.settings))
        arguments = self._arguments(target)
        groups = self._groups(arguments.get("betas"))
        own = {key for group in groups if isinstance(group, dict) for key in group}
        optimizer = self._made(self.key, groups, arguments)
        if not isinstance(optimizer, Optimizer):
            kind = type(optimizer).__name__
            raise UserError(f"{self.key}._target_={self.settings['_target_']} gave a {kind}, not a torch Optimizer")
        self._check_hyperparameters(optimizer, own)
        self._check_parameters(optimizer)
        if _needs_closure(optimizer):
            raise UserError(
                f"{self.key}={self._name()}: its step needs a closure that computes the loss again, and a training "
                "step computes it once"
            )
        if type(optimizer).__module__ == _TORCHAOS:
            _make_tables()
            device = self.device or next(iter(self.parameters.values())).device
            step = partial(_step_of_torchaos, optimizer, is_compiled=device.type == "cuda" and not self.rehearses)
            optimizer.step = step  # type: ignore[method-assign,assignment]
        return optimizer

    def _name(self) -> str:
        return component_name(dict(self.settings))

    def _made(self, key: str, groups: list[Any], arguments: dict[str, Any]) -> Any:
        named = {"_target_": self.settings["_target_"], "name": self._name()}
        return build_component(key, named | arguments, groups)

    def _arguments(self, target: Any) -> dict[str, Any]:
        given = {key: value for key, value in self.settings.items() if key not in ("_target_", *_NOT_ARGUMENTS)}
        for key in _OWN_DEFAULT:
            if given.get(key, ...) is None:
                del given[key]
        taken = parameters_of(target)
        for key in _KERNELS:
            if key in given and not (key in taken or _takes_any(taken)):
                raise UserError(f"{self.key}.{key}={str(given[key]).lower()}: {self._name()} has no such argument")
        given |= self._fused(target, given)
        if self.rehearses:
            given = {key: value for key, value in given.items() if key not in _KERNELS}
        takes_pair = "betas" in taken and "beta1" not in taken
        return _with_pair(given, taken["betas"].default) if takes_pair else given

    def _fused(self, target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, bool]:
        """Choose fused kernels where nobody has chosen, and torch has them for its own class on the device."""
        if getattr(target, "__module__", "").partition(".")[0] != "torch":  # it knows for itself
            return {}
        device = self.device or next(iter(self.parameters.values())).device
        why_not = self._why_not_fused(target, device)
        if given.get("fused") and why_not is not None:
            raise UserError(f"{self.key}.fused=true: {why_not}")
        is_chosen = "fused" in given or any(given.get(key) for key in _KERNELS)
        return {} if is_chosen or why_not is not None else {"fused": True}

    def _why_not_fused(self, target: Callable[..., Any], device: torch.device) -> str | None:
        """Find what fused kernels of torch's own class cannot do here; a clause, or None."""
        is_sharded = any(hasattr(one, "device_mesh") for one in self.parameters.values())  # DTensors
        if not has_fused_kernels(target, device.type) or (is_sharded and target not in FUSED_FOR_SHARDS):
            return f"torch has no fused {target.__name__} on {device.type}"
        if device.type == "cpu" and target is torch.optim.SGD:
            for dtype in {one.dtype for one in self.parameters.values()} & _HALF:
                # In torch 2.13 it leaves them as they are, where a vector of the processor is full.
                return f"on a CPU the step of torch's fused SGD leaves parameters in {dtype_name(dtype)} as they are"
        for name, one in self.parameters.items():
            if not one.is_floating_point():
                return f"torch fuses no step of complex {name}"
        return None

    def _groups(self, betas: Any) -> list[Any]:
        """The parameters: those that no group matches first, then the groups in their order."""
        left = dict(self.parameters)
        groups: list[dict[str, Any]] = []
        for group in self.settings.get("groups") or ():
            taken = _matching(left, group["match"])
            mine = [left.pop(name) for name in self.parameters if name in taken]
            if mine:
                own = {key: value for key, value in group.items() if key != "match"}
                groups.append({"params": mine, **_with_pair(own, betas)})
        rest = [*left.values()]
        if not groups:
            return rest
        return [{"params": rest}, *groups] if rest else groups

    def _check_hyperparameters(self, optimizer: Optimizer, own: set[str]) -> None:
        known = {key for key in optimizer.defaults if key not in _KERNELS}
        for key in sorted(own - known - {"params"}):
            raise UserError(
                f"{self.key}.groups: {type(optimizer).__name__} has no hyperparameter {key} that a group can have; "
                f"allowed are {', '.join(sorted(known))}"
            )

    def _check_parameters(self, optimizer: Optimizer) -> None:
        taken = {one for group in optimizer.param_groups for one in group["params"]}
        for name, parameter in self.parameters.items():
            if parameter not in taken:
                raise UserError(f"{self.key}={self._name()} does not train {name}, which it was given")


def _make_tables() -> None:
    """Let torchao make the tables of the numbers that its codes stand for, which it keeps for the whole process.

    Made first in a prediction, on a device without values, they would be wrong in the training, too.
    """
    with on_real_tensors():
        for name in ("subclass_4bit", "subclass_8bit"):
            tables = import_module(f"torchao.optim.{name}")
            tables.get_qmap_signed()
            tables.get_qmap_unsigned()


def _step_of_torchaos(optimizer: Optimizer, *, is_compiled: bool) -> None:
    """Take a step of one of torchao's optimizers, which computes the same in each step of a training.

    It calls `torch.compile` for each parameter. A compiled step rounds otherwise than an eager one, and within a trace
    nothing is compiled. So on CUDA every step is compiled, outside the trace where there is one, which does not see its
    operators; of a prediction only its sizes are computed. Elsewhere every step is eager: it needs no compiler, and
    none of the seconds that each shape takes.
    """
    is_predicted = isinstance(optimizer.param_groups[0]["params"][0], FakeTensor)
    outside = nullcontext() if not is_compiled else unseen() if is_predicted else without_modes()
    with outside, torch.compiler.set_stance("default" if is_compiled and not is_predicted else "force_eager"):
        type(optimizer).step(optimizer)


def _needs_closure(optimizer: Optimizer) -> bool:
    parameters = inspect.signature(optimizer.step).parameters.values()
    ordinary = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.default is inspect.Parameter.empty and one.kind in ordinary for one in parameters)


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())


def _with_pair(arguments: dict[str, Any], default: Any) -> dict[str, Any]:
    """Join `beta1` and `beta2`, which can be changed alone, to the pair `betas` that the class takes."""
    if not ({"beta1", "beta2"} & arguments.keys() and isinstance(default, list | tuple)):
        return arguments
    rest = {key: value for key, value in arguments.items() if key not in ("beta1", "beta2")}
    return rest | {"betas": (arguments.get("beta1", default[0]), arguments.get("beta2", default[1]))}
