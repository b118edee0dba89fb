"""The observer of every operator of a traced step."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor

from ampsweep.memory_categories import MemoryCategory
from ampsweep.observe.feeding import StorageCounter
from ampsweep.observe.flops import OperationCensus
from ampsweep.observe.ledger import Ledger
from ampsweep.observe.operators import is_in_backward

_PARAMETERS: Final = ({"parameters"}, {"communication"})
"""The categories of parameters: of whole ones, or of those gathered from the ranks that have a shard each."""
_DERIVED_FROM_PARAMETERS: Final = {"parameters", "communication", "autocast_weights", "activations"}

Scratch = Callable[[Any, Sequence[Any], Any], int]
"""A function of an operator, its arguments and its result to the bytes that its kernel takes for itself."""
_METACLASS: Final[Any] = type(torch.autograd.Function)
"""`apply` is a C function from torch 2.15 on, bound when a module is imported: what it looks up on its class is all
that can be intercepted. It reads `_backward_cls` while recording is as outside, and calls the others with it off."""
_INHERITED: Final = (torch.autograd.Function.forward, torch.autograd.Function.setup_context)


class RecordedForward:
    """Tells whether autograd records the result of the operator that is called now, and of the function around it.

    Autograd runs the forward of a custom function with recording off and then records the function as a whole.
    """

    def __init__(self) -> None:
        self._in_function = False
        self._applied: tuple[Any, bool] | None = None
        """The function that is being applied, and whether it is recorded."""

    def __bool__(self) -> bool:
        return self._in_function or torch.is_grad_enabled()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the custom functions that are applied inside."""

        def look_up(cls: Any, name: str) -> Any:
            found, applied = type.__getattribute__(cls, name), self._applied
            if name == "_backward_cls":
                self._applied = cls, bool(self)
            elif name in ("forward", "setup_context") and applied and applied[0] is cls and found not in _INHERITED:
                is_last = name == "setup_context" or cls.setup_context in _INHERITED
                return self._followed(found, applied[1], None if is_last else applied)
            return found

        with patch.object(_METACLASS, "__getattribute__", look_up):
            yield

    def _followed(
        self, function: Callable[..., Any], is_recorded: bool, left: tuple[Any, bool] | None
    ) -> Callable[..., Any]:
        """Follow a method of the function that is being applied; `left` is what is being applied after it."""

        @functools.wraps(function)
        def followed(*args: Any, **kwargs: Any) -> Any:
            outside, self._in_function = self._in_function, is_recorded
            try:
                return function(*args, **kwargs)
            finally:
                self._in_function, self._applied = outside, left

        return followed


class OperatorTracer(StorageCounter):
    """Enters the tensors of every operator into a ledger and counts operations, below autograd and autocast."""

    def __init__(self, ledger: Ledger, scratch: Scratch | None, region: Callable[[], str | None] | None = None) -> None:
        super().__init__(ledger)
        self._scratch, self._region = scratch, region
        self.census = OperationCensus()
        self.recorded = RecordedForward()
        self._in_backward = False
        self.num_operators = 0

    def _note(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], inputs: list[Tensor], result: Any, made: Any
    ) -> None:
        was_in_backward, self._in_backward = self._in_backward, is_in_backward()
        if self._in_backward and not was_in_backward:
            self.ledger.note()
        self.num_operators += 1
        operator = getattr(func, "overloadpacket", func)
        region = None if self._region is None or self._in_backward else self._region()
        dtype = inputs[0].dtype if inputs else None
        self.census.add(
            *(operator, args, kwargs, result, dtype),
            in_backward=self._in_backward,
            records=self._in_backward and bool(self.recorded),
            region=region,
        )
        for tensor in made:
            if self.ledger.create(tensor, self._category(operator, inputs, tensor)) and tensor.is_floating_point():
                self.census.add_output(tensor.dtype, dtype, region)
        if self._scratch is not None and (num_bytes := self._scratch(operator, args, result)):
            self.ledger.scratch(num_bytes)

    def _category(self, operator: Any, inputs: list[Tensor], output: Tensor) -> MemoryCategory:
        sources = {found.category for tensor in inputs if (found := self.ledger.find(tensor))}
        is_cast = operator is torch.ops.aten._to_copy and output.dtype != inputs[0].dtype
        if not self.recorded:
            # FSDP accumulates gradients in the dtype that they are reduced in.
            return "gradients" if is_cast and self._in_backward and sources == {"gradients"} else "temporary"
        if not sources & _DERIVED_FROM_PARAMETERS and not (is_cast and inputs[0].is_floating_point()):
            return "other"  # a batch, but for autocast's copy of it
        return "autocast_weights" if is_cast and sources in _PARAMETERS else "activations"
