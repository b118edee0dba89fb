"""Observation of single steps of a training: magnitudes of its layers' values, and non-finite gradients."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from ampsweep.monitors.magnitudes import MagnitudeTable, SelectedElements, all_finite, counted, flat, selected, taken
from ampsweep.monitors.observation_schedule import ObservationSchedule
from ampsweep.monitors.step_clock import Stopwatch
from ampsweep.nested_tensors import tensors_in
from ampsweep.numeric_formats import FLOAT16
from ampsweep.observe.operators import backward_node
from ampsweep.observe.step import parameters_of
from ampsweep.precision import Precision
from ampsweep.records.numerics import INPUT_LAYER, Magnitudes, RunNumerics, TensorKind


class NumericsWatch:
    """Observes single steps of a training for `numerics.json`. In an observed step, hooks see each module's output and
    its gradient, the gradients of the parameters, and the parameters before and after the optimizer's step; of a
    compiled model only parameters, gradients and updates. A module that returns another module's output has no
    activation of its own. Hooks change no value, and selections stay on the device until `read`, which waits for it."""

    def __init__(
        self, model: nn.Module, precision: Precision, schedule: ObservationSchedule, *, is_compiled: bool = False
    ) -> None:
        self._model, self._precision, self._is_compiled = model, precision, is_compiled
        self.schedule = schedule
        self.is_looking = False
        self._modules = {module: name for name, module in model.named_modules()}
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._table = MagnitudeTable([INPUT_LAYER, *self._modules.values(), *self._names.values()])
        self._selections: list[SelectedElements] = []
        self._before: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}  # elements; whether each has a gradient
        self._returned: dict[int, tuple[ref[Tensor], int]] = {}  # a module's outputs by id, with their versions
        self._reached: dict[str, None] = {}  # parameters in the order in which backward reaches them
        self._nonfinite: dict[str, int] = {}
        self._first_nonfinite: dict[str, int] = {}
        self._steps: list[int] = []
        self._scale: float | None = None
        self._scale_now: Tensor | float | None = None
        self.own_time = Stopwatch()
        self._unreported: dict[str, float] = {}

    @contextmanager
    def look(self) -> Iterator[None]:
        """Observe the step inside; call `read` afterwards."""
        self._selections, self._scale_now = [], self._precision.scale()
        self.own_time.reset()
        with ExitStack() as hooks:
            with self.own_time:
                self._add_hooks(hooks)
            self.is_looking = True
            try:
                yield
            finally:
                self.is_looking = False
                self._before.clear()
                self._returned.clear()

    def _add_hooks(self, hooks: ExitStack) -> None:
        if not self._is_compiled:
            hooks.callback(self._model.register_forward_pre_hook(self._on_input, with_kwargs=True).remove)
            hooks.callback(register_module_forward_hook(self._on_output).remove)
        for parameter, name in self._names.items():
            self._take("weight", name, parameter)
            if parameter.requires_grad:
                hook = partial(self._on_gradient, name)
                hooks.callback(parameter.register_post_accumulate_grad_hook(hook).remove)  # type: ignore[no-untyped-call]

    def read(self, step: int) -> None:
        """Count the selections of a step; waits for the device."""
        with self.own_time:
            self._scale = None if self._scale_now is None else float(self._scale_now)
            scale = self._scale or 1.0
            found = counted(self._selections, scale)
            self._selections = []
            self._table.add(found)
            self._steps.append(step)
            by_kind: dict[str, list[Magnitudes]] = {}
            for tensor in found:
                by_kind.setdefault(tensor.magnitudes.kind, []).append(tensor.magnitudes)
            figures = self._unreported = {}
            if activations := by_kind.get("activation"):
                figures["numerics/max_activation"] = max(row.max_abs for row in activations)
            if gradients := [row for kind in ("activation_gradient", "gradient") for row in by_kind.get(kind, [])]:
                figures["numerics/max_gradient"] = max(row.max_abs for row in gradients)
                if num := sum(sum(row.counts) for row in gradients):
                    lost = sum(_num_below(row, scale) for row in gradients)
                    figures["numerics/float16_underflow_pct"] = 100 * lost / num
            if num_updated := sum(tensor.num_updated for tensor in found):
                num_unchanged = sum(tensor.num_unchanged for tensor in found)
                figures["numerics/unchanged_pct"] = 100 * num_unchanged / num_updated

    def see_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Select from the gradients that an optimizer is about to use, before they are unscaled or clipped."""
        with self.own_time:
            for parameter in parameters_of(optimizer):
                if parameter.grad is not None:
                    self._take("gradient", self._names[parameter], parameter.grad, is_scaled=True)

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Select from the parameters that an optimizer is about to change."""
        with self.own_time:
            for parameter in parameters_of(optimizer):
                if parameter.grad is not None:
                    self._before[parameter] = taken(flat(parameter)), has_gradient(parameter, parameter.grad)

    def after_update(self, *, is_applied: bool) -> None:
        """Select from the changes of parameters since `before_update`, unless the step was skipped."""
        with self.own_time:
            for parameter, (before, with_gradient) in self._before.items() if is_applied else ():
                after = taken(flat(parameter))
                bits = torch.int64 if after.dtype == torch.float64 else torch.int32
                is_unchanged = (after.view(bits) == before.view(bits))[with_gradient]
                name, change = self._names[parameter], after - before
                update = SelectedElements("update", name, parameter.dtype, change, (), False, is_unchanged)
                self._selections.append(update)
            self._before.clear()

    def note_nonfinite(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the gradients that make an optimizer skip its step; waits for the device."""
        found = {self._names[p] for p in parameters_of(optimizer) if p.grad is not None and not all_finite(p.grad)}
        ordered = self.in_backward_order(found)
        for name in ordered:
            self._nonfinite[name] = self._nonfinite.get(name, 0) + 1
        if ordered:
            self._first_nonfinite[ordered[0]] = self._first_nonfinite.get(ordered[0], 0) + 1

    def in_backward_order(self, names: set[str]) -> list[str]:
        """Sort names of parameters by the order in which backward reaches them, as far as it is known."""
        known = [name for name in self._reached if name in names]
        return known + [name for name in self._names.values() if name in names and name not in self._reached]

    def figures(self) -> dict[str, float]:
        """Metrics of the latest observation; empty if there was none since the last call."""
        figures, self._unreported = self._unreported, {}
        return figures

    def numerics(self) -> RunNumerics:
        in_order = self.in_backward_order({*self._nonfinite})
        return RunNumerics(
            steps=sorted({*self._steps}),
            scale=self._scale,
            cost_pct=self.schedule.cost_pct,
            magnitudes=self._table.magnitudes(),
            nonfinite_gradients={name: self._nonfinite[name] for name in in_order},
            first_nonfinite={name: self._first_nonfinite[name] for name in in_order if name in self._first_nonfinite},
        )

    def load(self, numerics: RunNumerics) -> None:
        self._table.load(numerics.magnitudes)
        self._steps, self._scale = list(numerics.steps), numerics.scale
        self._nonfinite, self._first_nonfinite = dict(numerics.nonfinite_gradients), dict(numerics.first_nonfinite)

    def _on_input(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        with self.own_time:
            for tensor in tensors_in((args, kwargs)):
                self._take("activation", INPUT_LAYER, tensor)

    def _on_output(self, module: nn.Module, _: Any, output: Any) -> None:
        name = self._modules.get(module)
        if name is None:
            return
        with self.own_time:
            is_recomputed = backward_node() is not None
            for tensor in tensors_in(output):
                if not tensor.is_floating_point() or not tensor.dim() or self._is_known(tensor):
                    continue  # a tensor without dimensions is a loss, in float32 under autocast
                if not is_recomputed:  # by activation checkpointing
                    self._take("activation", name, tensor)
                if tensor.requires_grad:
                    tensor.register_hook(partial(self._on_output_gradient, name))  # type: ignore[no-untyped-call]

    def _is_known(self, tensor: Tensor) -> bool:
        """Return True if another module returned this tensor, and it has not changed since."""
        before = self._returned.get(id(tensor))
        self._returned[id(tensor)] = ref(tensor), tensor._version
        return before is not None and before[0]() is tensor and before[1] == tensor._version

    def _on_output_gradient(self, name: str, gradient: Tensor | None) -> None:
        if gradient is not None and self.is_looking:
            with self.own_time:
                self._take("activation_gradient", name, gradient, is_scaled=True)

    def _on_gradient(self, name: str, _: Tensor) -> None:
        self._reached.setdefault(name)

    def _take(self, kind: TensorKind, layer: str, tensor: Tensor, *, is_scaled: bool = False) -> None:
        if not tensor.is_floating_point():
            return
        if (selection := selected(kind, layer, tensor, is_scaled=is_scaled)) is not None:
            self._selections.append(selection)


def _num_below(gradient: Magnitudes, scale: float) -> int:
    """The number of nonzero elements below float16's smallest normal number after scaling."""
    bins = max(FLOAT16.min_normal_exponent - math.floor(math.log2(scale)) - gradient.first_exponent, 0)
    return sum(gradient.counts[:bins])


def has_gradient(parameter: Tensor, gradient: Tensor) -> Tensor:
    """A mask of the elements that `taken` selects: True where the gradient is not zero."""
    if gradient.layout == parameter.layout and gradient.stride() == parameter.stride():
        return taken(flat(gradient)) != 0
    return torch.ones_like(taken(flat(parameter)), dtype=torch.bool)
