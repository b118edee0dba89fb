"""Learning rates as a function of applied steps: a named shape, a user's function, or a torch LRScheduler."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ampsweep.config.components import is_plateau
from ampsweep.config.errors import UserError
from ampsweep.config.schema import component_name
from ampsweep.text import one_line
from ampsweep.training.components.instantiate import build_component, locate, parameters_of
from ampsweep.training.components.optimizer import is_fused


@dataclass(frozen=True)
class Rates:
    """The learning rates of all parameter groups as a function of applied steps: `factors` times `peaks`."""

    factors: Callable[[int], Sequence[float]]
    peaks: Sequence[float]

    def __call__(self, applied_steps: int) -> list[float]:
        return [factor * peak for factor, peak in zip(self.factors(applied_steps), self.peaks, strict=True)]


def build_rates(config: Mapping[str, Any], optimizers: Sequence[Optimizer], num_steps: int) -> Rates | None:
    """Build the learning rates of all groups of the optimizers, whose current `lr` is the peak; None if constant."""
    if "_target_" not in config and config["name"] == "constant" and not config.get("num_warmup_steps"):
        return None
    for optimizer in optimizers:
        if any(group.get("lr") is None for group in optimizer.param_groups):
            raise UserError(
                f"scheduler={component_name(dict(config))}: {type(optimizer).__name__} has no learning rate to set; "
                "give optimizer.lr, or leave it to the optimizer with scheduler=constant"
            )
    if is_plateau(config):  # constant between evaluations
        return None
    peaks = [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    share: Callable[[int], float] = partial(shape, config, num_steps=num_steps)
    if "_target_" in config:
        settings = {**config, "name": component_name(dict(config))}
        target = locate("scheduler", settings)
        taken = parameters_of(target)
        if "num_steps" in taken:
            settings = {"num_steps": num_steps, **settings}
        if "optimizer" in taken:
            return Rates(_TorchScheduler(settings, optimizers), [1.0] * len(peaks))
        more = {} if inspect.isclass(target) else {"_partial_": True}
        share = _checked_function(settings, build_component("scheduler", settings, **more))
    return Rates(lambda applied_steps: [share(applied_steps)] * len(peaks), peaks)


def check_rates(config: Mapping[str, Any], optimizers: Sequence[Optimizer], num_steps: int) -> None:
    """Compute the learning rates of a run's first ten thousand steps; raise a UserError as `build_rates` does."""
    rates = build_rates(config, optimizers, num_steps)
    if rates is not None and "_target_" in config:
        for step in range(min(num_steps, 10_000)):
            rates(step)


def shape(config: Mapping[str, Any], applied_steps: int, num_steps: int) -> float:
    """Return the share of the peak learning rate for the step after `applied_steps` applied steps."""
    warmup, floor = config.get("num_warmup_steps", 0), config.get("min_lr_ratio", 0.0)
    if applied_steps < warmup:
        return float((applied_steps + 1) / (warmup + 1))
    if config["name"] == "constant":
        return 1.0
    progress = min(1.0, (applied_steps - warmup) / max(1, num_steps - warmup))
    decay = 1 - progress if config["name"] == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return float(floor + (1 - floor) * decay)


def _checked_function(settings: Mapping[str, Any], function: Any) -> Callable[[int], float]:
    """Wrap a user's function so that it returns a valid share or raises a UserError."""
    name = settings["name"]
    if not callable(function):
        raise UserError(f"scheduler={name}: a {type(function).__name__} cannot be called with a number of steps")

    def share(applied_steps: int) -> float:
        try:
            value = float(function(applied_steps))
        except Exception as error:  # the user's own function may raise anything
            raise UserError(f"scheduler={name} fails for {applied_steps} applied steps: {one_line(error)}") from error
        if not 0 <= value < math.inf:
            raise UserError(f"scheduler={name} gives {value} for {applied_steps} applied steps")
        return value

    return share


class _TorchScheduler:
    """Learning rates from a torch LRScheduler, which is stepped on a stand-in of each optimizer as steps are applied.

    Skipped steps thus do not advance it, and it has no state to save: asked for a later step, it catches up.
    """

    def __init__(self, settings: dict[str, Any], optimizers: Sequence[Optimizer]) -> None:
        self._settings = settings
        # Copies, which keep the current peaks.
        self._optimizers = [_StandIn(optimizer.param_groups, optimizer.defaults) for optimizer in optimizers]
        self._at, self._rates, self._iterators = math.inf, [0.0], list[Iterator[list[float]]]()
        self(0)  # most schedulers that change something besides learning rates do so when constructed

    def __call__(self, applied_steps: int) -> list[float]:
        if applied_steps < self._at:
            self._iterators = [_scheduled(self._settings, optimizer) for optimizer in self._optimizers]
            self._at = -1
        while self._at < applied_steps:
            self._rates = [rate for rates in self._iterators for rate in next(rates)]
            self._at += 1
        return self._rates


def _scheduled(settings: dict[str, Any], optimizer: "_StandIn") -> Iterator[list[float]]:
    """Yield the learning rates of an optimizer's groups, before the first step and after each."""
    name, stand_in = settings["name"], _StandIn(optimizer.param_groups, optimizer.defaults)
    scheduler = build_component("scheduler", settings, optimizer=stand_in)
    if not isinstance(scheduler, LRScheduler):
        kind = type(scheduler).__name__
        raise UserError(f"scheduler._target_={settings['_target_']} gave a {kind}, not a torch LRScheduler")
    arguments = parameters_of(scheduler.step).values()
    needed = [argument.name for argument in arguments if argument.default is inspect.Parameter.empty]
    if needed:
        raise UserError(
            f"scheduler={name}: {type(scheduler).__name__} needs {needed[0]} for its step, and a learning rate here is "
            "a function of applied steps alone; write it as one, or choose cosine or linear"
        )
    stand_in.step()  # schedulers expect an optimizer step before their first
    for step in count():
        if (other := stand_in.changed()) is not None:
            can_keep = "cycle_momentum" in parameters_of(type(scheduler).__init__)
            way_out = "scheduler.cycle_momentum=false leaves it" if can_keep else "choose one that leaves it"
            raise UserError(
                f"scheduler={name}: {type(scheduler).__name__} changes {other} too, and a scheduler here sets learning "
                f"rates alone; {way_out}"
            )
        rates = [float(group["lr"]) for group in stand_in.param_groups]
        if not all(0 <= rate < math.inf for rate in rates):
            raise UserError(f"scheduler={name} gives {rates} for {step} applied steps")
        yield rates
        try:
            scheduler.step()
        except Exception as error:  # the user's own scheduler may raise anything
            raise UserError(f"scheduler={name} fails for {step + 1} applied steps: {one_line(error)}") from error


class _StandIn(Optimizer):
    """An optimizer with the groups and defaults of another, whose step does nothing."""

    def __init__(self, groups: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]) -> None:
        super().__init__([dict(group) for group in groups], dict(defaults))
        self._first = [dict(group) for group in self.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""

    def changed(self) -> str | None:
        """Return the first setting of a group, apart from learning rates, that has changed."""
        groups = zip(self._first, self.param_groups, strict=True)
        keys = ((key, first, now) for first, now in groups for key in first if key not in ("params", "lr"))
        return next((key for key, first, now in keys if now[key] != first[key]), None)


class Schedule:
    """Sets the learning rates of all optimizers before each step. The arguments are those of `build_rates`.

    With `on_device`, the number of applied steps is a tensor on the device, because the host does not know it (fused
    optimizer under a GradScaler); the learning rate is then a tensor there too, so that setting it never waits. A
    constant learning rate stays a plain number.
    """

    def __init__(
        self, config: Mapping[str, Any], optimizers: Sequence[Optimizer], num_steps: int, *, on_device: bool
    ) -> None:
        self.num_steps = num_steps
        self._optimizers = [*optimizers]  # not their groups, which loading a state replaces
        # True for a group whose optimizer waits for the device anyway, to know whether to step; it gets a number.
        self._waits = [not is_fused(optimizer) for optimizer in optimizers for _ in optimizer.param_groups]
        self._rates = build_rates(config, self._optimizers, num_steps)
        self._tables: list[Tensor] = []  # by group, the rate of each step, on the device; equal ones share a table
        self.is_constant = self._rates is None
        if on_device and self._rates is not None:
            # A float32 factor times a float32 peak, as a torch scheduler computes a learning rate that is a tensor.
            devices = [group["params"][0].device for group in self._groups()]
            columns = zip(*(self._rates.factors(step) for step in range(num_steps)), strict=True)
            keys = [*zip(columns, self._rates.peaks, devices, strict=True)]
            tables = {key: torch.tensor(key[0], dtype=torch.float32, device=key[2]) * key[1] for key in set(keys)}
            self._tables = [tables[key] for key in keys]
            for group, table, waits in zip(self._groups(), self._tables, self._waits, strict=True):
                if not waits:
                    group["lr"] = table[0].clone()

    def set(self, applied_steps: int | Tensor) -> None:
        """Set the learning rate of the next step; `applied_steps` is a 0-dim int64 tensor if `on_device`."""
        if self._tables:
            index = torch.as_tensor(applied_steps, device=self._tables[0].device).clamp(max=self.num_steps - 1)
            for group, table, waits in zip(self._groups(), self._tables, self._waits, strict=True):
                if waits:
                    _set_rate(group, float(table[index]))
                else:
                    torch.take(table, index, out=group["lr"])
        elif self._rates is not None:
            assert isinstance(applied_steps, int), "the host knows the number of applied steps"
            for group, rate in zip(self._groups(), self._rates(applied_steps), strict=True):
                _set_rate(group, rate)

    def learning_rate(self) -> float | Tensor | None:
        """Return the first group's learning rate, a 0-dim tensor if kept on the device; None if it has none."""
        value: float | Tensor | None = self._optimizers[0].param_groups[0].get("lr")
        if not isinstance(value, Tensor):
            return value
        is_on_device = bool(self._tables) and not self._waits[0]
        return value.detach() if is_on_device or not value.is_cpu else float(value)

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self._optimizers:
            yield from optimizer.param_groups


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):  # optimizers with compiled steps keep it in a tensor
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
