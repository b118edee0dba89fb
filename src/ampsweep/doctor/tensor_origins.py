"""The origin of each tensor of a training, and of its dtype: a parameter, a batch, or the operator that made it."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import keystr, tree_leaves_with_path

from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.calls import Call
from ampsweep.observe.functions import FunctionMode, RunningFunction
from ampsweep.observe.operators import storage_id
from ampsweep.user_code import is_own_class

_Held = Literal["parameter", "buffer", "attribute", "batch", "optimizer_state"]
OriginKind = Literal[_Held, "constant", "cast", "autocast", "operator", "unknown"]
"""`attribute`: a tensor that a module holds without having registered it; `constant`: made from no other tensor;
`cast`: by the code's own `.to(...)`; `autocast`: cast by autocast; `unknown`: made outside of torch's operators."""

_COPIES: Final = ("aten.clone", "aten.contiguous", "aten.detach", "aten.alias")
_CASTING: Final = ("to", "type", "type_as", "float", "half", "bfloat16", "double", "_to_copy", "to_dtype", "new_tensor")


@dataclass(frozen=True, slots=True, eq=False)
class TensorOrigin:
    kind: OriginKind
    dtype: torch.dtype
    name: str | None = None  # name of a parameter, buffer, attribute or optimizer state, or key of a batch's tensor
    call: Call | None = None
    sources: tuple["TensorOrigin", ...] = ()  # the origins of the operator's tensor arguments
    function: RunningFunction | None = None  # that called the operator; None in autograd's backward
    is_same: bool = False  # the operator only made a view or a copy of its first tensor

    @property
    def made(self) -> "TensorOrigin":
        """The origin of the values: views and copies are skipped."""
        origin = self
        while origin.is_same and origin.sources:
            origin = origin.sources[0]
        return origin

    @property
    def dtype_from(self) -> "TensorOrigin":
        """The origin of the dtype: the first tensor that it was inherited from, by promotion or unchanged."""
        origin = self
        while origin.sources:
            same = [source for source in origin.sources if source.dtype == origin.dtype]
            if not same or origin.kind in ("cast", "autocast"):
                break
            origin = same[0]
        return origin


class TensorOrigins:
    """The origins of all live tensors of a training; `functions` knows the torch function that is running."""

    def __init__(self, model: nn.Module, optimizers: Iterable[Optimizer], functions: FunctionMode) -> None:
        self._model, self._optimizers, self._functions = model, [*optimizers], functions
        self._known: dict[int, tuple[weakref.ref[Tensor], TensorOrigin]] = {}

    def note(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        taken = {id(tensor) for tensor in inputs}
        made = [tensor for tensor in tensors_in(result) if id(tensor) not in taken]
        if not made:
            return
        sources = tuple(self.of(tensor) for tensor in inputs if tensor.is_floating_point() or tensor.is_complex())
        storages = {_storage(tensor) for tensor in inputs[:1]}
        kind, function = self._kind(call, inputs), self._functions.running
        for tensor in made:
            is_copy = _storage(tensor) in storages or call.operator in _COPIES
            is_same = bool(sources) and sources[0].dtype == tensor.dtype and is_copy
            self._know(tensor, TensorOrigin(kind, tensor.dtype, None, call, sources, function, is_same))

    def name_batch(self, batch: Any) -> None:
        for name, tensor in _named(batch, "batch"):
            self._know(tensor, TensorOrigin("batch", tensor.dtype, name=name))

    def of(self, tensor: Tensor) -> TensorOrigin:
        found = self._known.get(id(tensor))
        if found is not None and found[0]() is tensor:
            return found[1]
        unknown: tuple[OriginKind, str | None] = "unknown", None
        kind, name = next(
            ((kind, name) for kind, name, held in held_tensors(self._model, self._optimizers) if held is tensor),
            unknown,
        )
        origin = TensorOrigin(kind, tensor.dtype, name=name)
        self._know(tensor, origin)
        return origin

    def _know(self, tensor: Tensor, origin: TensorOrigin) -> None:
        self._known[id(tensor)] = weakref.ref(tensor), origin

    def _kind(self, call: Call, inputs: Sequence[Tensor]) -> OriginKind:
        if not inputs or call.operator == "aten.lift_fresh":
            return "constant"
        function = self._functions.running
        if not call.is_cast or function is None:
            return "operator"
        if function.identity.function in _CASTING:
            return "cast"
        return "autocast" if function.is_autocast else "operator"


OF_EVERY_MODULE: Final = frozenset(vars(nn.Module()))  # attributes in which every module stores what was registered
_DEEPEST: Final = 3  # objects of the user's own classes that are looked into within each other


def held_tensors(
    model: nn.Module, optimizers: Iterable[Optimizer], task: object = None
) -> Iterator[tuple[OriginKind, str, Tensor]]:
    """All tensors that a training holds between steps, by their names in Python."""
    yield from (("parameter", name, parameter) for name, parameter in model.named_parameters())
    yield from (("buffer", name, buffer) for name, buffer in model.named_buffers())
    yield from (("attribute", name, value) for name, value in chain(attributes(model), _named(task, "task")))
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, Tensor):
                    yield "optimizer_state", f"{key} of {names.get(parameter, '?')}", value


def attributes(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All tensors that modules hold without having registered them, also in containers, by their names in Python."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in OF_EVERY_MODULE:
                for tensor_name, tensor in _named(value, name):
                    yield f"{prefix}.{tensor_name}" if prefix else tensor_name, tensor


def _named(value: Any, name: str, depth: int = _DEEPEST) -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested containers and objects, by their names in Python: `batch[0]`, `batch['mask']`."""
    for path, leaf in tree_leaves_with_path(value):
        place = name + keystr(path)
        if isinstance(leaf, Tensor):
            yield place, leaf
        elif isinstance(leaf, nn.Module):
            yield from _named(dict(leaf.state_dict(keep_vars=True)), place, 0)
        elif depth and is_own_class(type(leaf)):
            for key, inner in vars(leaf).items():
                yield from _named(inner, f"{place}.{key}", depth - 1)


def _storage(tensor: Tensor) -> int:
    return storage_id(tensor.untyped_storage()) if tensor.layout is torch.strided else id(tensor)
