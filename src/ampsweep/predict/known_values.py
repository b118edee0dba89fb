"""Known values of small fake integer and boolean tensors, such as masks that models look at."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ampsweep.nested_tensors import map_tensors, tensors_in
from ampsweep.observe.operators import FakeTensor, OpOverload, schema_of

aten = torch.ops.aten

_UP_TO: Final = 2**18  # largest number of elements whose values are kept
_CONSTANT: Final = frozenset((aten.arange, aten.eye, aten.full, aten.ones, aten.scalar_tensor, aten.zeros))
_CONSTANT_LIKE: Final = frozenset(
    (aten.full_like, aten.new_full, aten.new_ones, aten.new_zeros, aten.ones_like, aten.zeros_like)
)
"""Operators that use the sizes of their input, not its values."""
_UNINITIALIZED: Final = frozenset((aten.empty_like, aten.new_empty, aten.new_empty_strided))


class KnownValues:
    """The known values of tensors; it keeps no tensor alive."""

    def __init__(self) -> None:
        self._values = WeakTensorKeyDictionary()

    def of(self, tensor: object) -> Tensor | None:
        return self._values.get(tensor) if isinstance(tensor, Tensor) else None  # type: ignore[no-untyped-call]

    def remember(self, tensor: Tensor, values: Tensor) -> None:
        """Note the values of a tensor, if they are integers or booleans and not many."""
        if _is_whole(values) and values.numel() <= _UP_TO:
            self._values[tensor] = values

    def follow(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note the results of an operator on known values, and forget values that it changes otherwise."""
        if isinstance(result, Tensor) and not _is_whole(result):  # the usual case
            return
        outputs = [*tensors_in(result)]
        if not any(map(_is_whole, outputs)) or not isinstance(operator, OpOverload):
            return
        values = None
        if sum(output.numel() for output in outputs) <= _UP_TO:
            values = self.computed(operator, args, kwargs)
        if values is not None:
            for output, value in zip(outputs, tensors_in(values), strict=True):
                self.remember(output, value)
        elif schema_of(operator).is_mutable:
            for tensor in [*tensors_in((args, kwargs))]:
                self._forget(tensor)

    def computed(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute an operator on known values; None if it uses unknown ones, draws numbers, or only allocates."""
        packet = getattr(operator, "overloadpacket", None)
        if packet in _UNINITIALIZED or torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ()):
            return None
        if packet in _CONSTANT_LIKE:
            return operator(torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:], **kwargs)
        inputs = [*tensors_in((args, kwargs))]
        if not inputs and packet not in _CONSTANT:
            return None
        if any(isinstance(tensor, FakeTensor) and self.of(tensor) is None for tensor in inputs):
            return None

        def known(tensor: torch.Tensor) -> torch.Tensor:
            values = self.of(tensor) if isinstance(tensor, FakeTensor) else tensor
            assert values is not None, "looked up above"
            return values

        args, kwargs = map_tensors((args, kwargs), known)
        return operator(*args, **kwargs)

    def _forget(self, tensor: Tensor) -> None:
        if (values := self.of(tensor)) is not None:
            place = values.untyped_storage().data_ptr()
            for other, known in [*self._values.items()]:  # type: ignore[no-untyped-call]
                if known.untyped_storage().data_ptr() == place:
                    del self._values[other]


@contextmanager
def taken_for_real() -> Iterator[None]:
    """Make Hugging Face's models treat fake tensors as real ones; for fake ones they would allocate every mask."""
    module = sys.modules.get("transformers.utils.import_utils")
    is_there = hasattr(module, "is_fake_tensor")
    with patch.object(module, "is_fake_tensor", lambda _: False) if is_there else nullcontext():
        yield


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
