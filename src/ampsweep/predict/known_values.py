"""Values of small fake tensors of whole numbers, such as masks: models look at them, and the host knows them."""

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

_UP_TO: Final = 2**18
"""Largest number of elements whose values are kept."""
_CONSTANT: Final = frozenset((aten.arange, aten.eye, aten.full, aten.ones, aten.scalar_tensor, aten.zeros))
_CONSTANT_LIKE: Final = frozenset(
    (aten.full_like, aten.new_full, aten.new_ones, aten.new_zeros, aten.ones_like, aten.zeros_like)
)
"""Operators that take sizes from their input and no values."""
_UNINITIALIZED: Final = frozenset((aten.empty_like, aten.new_empty, aten.new_empty_strided))


class KnownValues:
    """The values of tensors that are known; it keeps no tensor alive."""

    def __init__(self) -> None:
        self._values = WeakTensorKeyDictionary()

    def of(self, tensor: object) -> Tensor | None:
        """The values of a tensor, if they are known."""
        return self._values.get(tensor) if isinstance(tensor, Tensor) else None  # type: ignore[no-untyped-call]

    def remember(self, tensor: Tensor, values: Tensor) -> None:
        """Note the values of a tensor, if they are whole numbers and not many."""
        if _is_whole(values) and values.numel() <= _UP_TO:
            self._values[tensor] = values

    def follow(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note what an operator makes of known values, and forget those that it changes to others."""
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
        """Compute what an operator makes of known values; None if it takes others, or draws, or only allocates."""
        packet = getattr(operator, "overloadpacket", None)
        if packet in _UNINITIALIZED or torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ()):
            return None
        if packet in _CONSTANT_LIKE:
            return operator(torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:], **kwargs)
        taken = [*tensors_in((args, kwargs))]
        if not taken and packet not in _CONSTANT:
            return None
        if any(isinstance(tensor, FakeTensor) and self.of(tensor) is None for tensor in taken):
            return None

        def known(tensor: torch.Tensor) -> torch.Tensor:
            values = self.of(tensor) if isinstance(tensor, FakeTensor) else tensor
            assert values is not None, "looked up above"
            return values

        args, kwargs = map_tensors((args, kwargs), known)
        return operator(*args, **kwargs)

    def _forget(self, tensor: Tensor) -> None:
        """Forget the values of a tensor and of all that share its memory."""
        if (values := self.of(tensor)) is not None:
            place = values.untyped_storage().data_ptr()
            for other, known in [*self._values.items()]:  # type: ignore[no-untyped-call]
                if known.untyped_storage().data_ptr() == place:
                    del self._values[other]


@contextmanager
def taken_for_real() -> Iterator[None]:
    """Let Hugging Face's models do inside what they do for real tensors: for fake ones they make every mask.

    They ask `transformers.utils.import_utils.is_fake_tensor`, if they are there.
    """
    module = sys.modules.get("transformers.utils.import_utils")
    is_there = hasattr(module, "is_fake_tensor")
    with patch.object(module, "is_fake_tensor", lambda _: False) if is_there else nullcontext():
        yield


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
