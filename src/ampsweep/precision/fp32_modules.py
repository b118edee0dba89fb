"""Modules that compute in float32 while the rest of the model runs under autocast (`precision.fp32_modules`)."""

import functools
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import torch
from torch import nn

from ampsweep.nested_tensors import map_tensors
from ampsweep.precision.parameter_chunks import HALF

FP32_MODULES: Final = "precision.fp32_modules"
"""The name of these modules as a region of a trace."""


class Fp32Modules:
    """The modules of a model that match patterns (of `fnmatch.fnmatchcase`), and all modules within them.

    The wrapper replaces a module's `forward` attribute: it applies however the module is called, and names in state
    dicts stay as they are.
    """

    def __init__(self, patterns: Sequence[str], device_type: str) -> None:
        self.patterns, self.device_type = tuple(patterns), device_type
        self.depth = 0
        """Number of these modules whose forward is running, nested in each other."""
        self.has_run: set[str] = set()
        """Patterns with a module that ran outside compiled code."""

    @property
    def idle_patterns(self) -> list[str]:
        """Patterns whose modules were never called: the model uses their parameters elsewhere, under autocast."""
        return [pattern for pattern in self.patterns if pattern not in self.has_run]

    def cover(self, model: nn.Module) -> None:
        """Wrap the matching modules of `model` and no others; raise the ``ValueError`` of `find_modules`."""
        matched = find_modules(model, self.patterns)
        uncover(model)
        patterns_of: dict[nn.Module, set[str]] = {}
        for pattern, modules in matched.items():
            for module in (inner for outer in modules for inner in outer.modules()):
                patterns_of.setdefault(module, set()).add(pattern)
        for module, patterns in patterns_of.items():
            module.forward = _InFloat32(module, self, frozenset(patterns))


def find_modules(model: nn.Module, patterns: Sequence[str]) -> dict[str, list[nn.Module]]:
    """Find the modules that each pattern matches by any of their names; raise a ``ValueError`` if there are none."""
    named = [*model.named_modules(remove_duplicate=False)]
    matched = {pattern: [module for name, module in named if fnmatchcase(name, pattern)] for pattern in patterns}
    for pattern, modules in matched.items():
        if not modules:
            names = [name for name, _ in named if name]
            outermost = [name for name in names if "." not in name][:8]
            more = ", ..." if len(names) > len(outermost) else ""
            present = f"there are {', '.join(outermost)}{more}" if outermost else "the model has no modules"
            raise ValueError(f"precision.fp32_modules=[{pattern}]: no module has such a name; {present}")
    return matched


def uncover(model: nn.Module) -> None:
    for module in model.modules():
        wrapper = vars(module).get("forward")
        if isinstance(wrapper, _InFloat32):
            del module.forward
            if wrapper.was_on_object:
                module.forward = wrapper.forward


class _InFloat32:
    """The forward of a module with autocast off and half-precision inputs cast to float32."""

    def __init__(self, module: nn.Module, region: Fp32Modules, patterns: frozenset[str]) -> None:
        self.forward, self._region, self._patterns = module.forward, region, patterns
        self.was_on_object = "forward" in vars(module)  # set by the user over the method of the class
        functools.update_wrapper(self, self.forward, updated=())  # for `inspect.signature`

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        region = self._region
        if torch.compiler.is_compiling():
            return self._call(args, kwargs)
        region.has_run |= self._patterns
        region.depth += 1
        try:
            return self._call(args, kwargs)
        finally:
            region.depth -= 1

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.autocast(self._region.device_type, enabled=False):
            return self.forward(*in_float32(args), **in_float32(kwargs))


def in_float32(value: Any) -> Any:
    """Cast the float16 and bfloat16 tensors in nested values to float32."""
    return map_tensors(value, lambda tensor: tensor.float() if tensor.dtype in HALF else tensor)
