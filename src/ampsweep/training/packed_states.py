"""States that an optimizer keeps in 8 bits, as plain parts that a checkpoint can hold, and as numbers.

torchao packs a tensor into codes, of which each block of consecutive numbers shares a scale: of int8 a code is the
index of a number in a table (`qmap`), of float8 it is the number.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.precision.float32_update import Float32Update
from ampsweep.tracing.ledger import plain_tensors_in, tensors_in

_PACKED: Final = "packed"
"""The key that tells the parts of a packed tensor from other containers; its value is `int8` or `float8`."""
_CLASSES: Final = {"OptimState8bit": "int8", "OptimStateFp8": "float8"}
"""The names of torchao's tensors."""
_SIGNED: Final = "exp_avg"
"""The state that can be negative; second moments and their maxima cannot."""


def kind_of(value: Any) -> str | None:
    """Tell `int8` or `float8` for a packed tensor and for the parts of one; None for all else."""
    if isinstance(value, Tensor):
        return _CLASSES.get(type(value).__name__) if type(value).__module__.startswith("torchao.optim") else None
    return value.get(_PACKED) if isinstance(value, dict) else None


def in_parts(state: dict[str, Any]) -> dict[str, Any]:
    """Replace the packed tensors of an optimizer's `state_dict()` by their parts."""
    return state | {"state": {key: _each(one, _parts) for key, one in state["state"].items()}}


def numbers_of(parts: Mapping[str, Any]) -> Tensor:
    """The numbers that parts stand for: float32, in the shape of the codes."""
    codes: Tensor = parts["codes"]
    scale: Tensor = parts["scale"]
    numbers: Tensor = parts["qmap"][codes.int()] if parts[_PACKED] == "int8" else codes.float()
    scaled = numbers.view(scale.numel(), -1) * scale.view(-1, 1)
    return scaled.view(codes.shape)


def load_parts(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state with its packed tensors in parts into an optimizer, in the form in which that keeps it."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    kept = {
        number: _as_kept_by(optimizer, parameter, state["state"][number])
        for number, parameter in zip(numbers, parameters, strict=True)
        if number in state["state"]
    }
    optimizer.load_state_dict(state | {"state": state["state"] | kept})


def _as_kept_by(optimizer: torch.optim.Optimizer, parameter: Tensor, state: dict[str, Any]) -> dict[str, Any]:
    """Give a parameter's saved state the form in which the optimizer keeps it: bitwise the same, if it is that already.

    `_new_buffer` is how torchao's optimizers decide on it, and has no public name (torchao 0.18).
    """
    inner = optimizer.inner if isinstance(optimizer, Float32Update) else optimizer
    new_buffer = getattr(inner, "_new_buffer", None)

    def one(key: str, value: Any) -> Any:
        kind = kind_of(value)
        if new_buffer is None:
            return value if kind is None else numbers_of(value)
        if kind is None and not (isinstance(value, Tensor) and value.shape == parameter.shape and value.ndim):
            return value
        own = new_buffer(parameter.detach().cpu(), key == _SIGNED)
        if kind is None and kind_of(own) is None:
            return value  # cast to the parameter's dtype, as of every optimizer
        if kind == kind_of(own) and value["scale"].shape == own.scale.shape:
            for name in own.tensor_attrs:
                getattr(own, name).copy_(value[name])
            return own
        return own.copy_(value.float() if kind is None else numbers_of(value))

    return {key: one(key, value) for key, value in state.items()}


def dtypes_of(values: Iterable[Any]) -> set[str]:
    """The dtypes of floating-point tensors, packed ones among them, by the names that `optimizer.state_dtype` has."""
    found = set()
    for value in values:
        if (kind := kind_of(value)) is not None:
            found.add(kind)
        elif isinstance(value, Tensor) and value.is_floating_point():
            found.add(str(value.dtype).removeprefix("torch."))
    return found


def census(optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, dict[str, int]]:
    """Count the tensors that optimizers keep for their parameters, and their bytes with scales and tables, by dtype.

    The dtypes have the names that `optimizer.state_dtype` has; counts of steps are left out.
    """
    found: dict[str, dict[str, int]] = {}
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for tensor in tensors_in(state):
                if tensor.ndim:
                    name = kind_of(tensor) or str(tensor.dtype).removeprefix("torch.")
                    count = found.setdefault(name, {"num_tensors": 0, "num_bytes": 0})
                    count["num_tensors"] += 1
                    count["num_bytes"] += sum(plain.nbytes for plain in plain_tensors_in(tensor))
    return found


def _each(state: Any, change: Any) -> Any:
    return {key: change(value) for key, value in state.items()} if isinstance(state, dict) else state


def _parts(value: Any) -> Any:
    kind = kind_of(value)
    if kind is None or not isinstance(value, Tensor):
        return value
    return {_PACKED: kind, **{name: getattr(value, name) for name in value.__tensor_flatten__()[0]}}  # type: ignore[attr-defined]
