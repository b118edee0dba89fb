"""Parts of parameters, as an optimizer updates them one after the other, and what is cast for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

HALF: Final = (torch.bfloat16, torch.float16)


@dataclass(slots=True, eq=False)
class Piece:
    """A part of a parameter that is updated at once: elements `begin` to `end` in the order of its storage.

    It has the parameter's own shape if it is all of it, else it is 1-D.
    """

    parameter: nn.Parameter
    group: int
    begin: int
    end: int
    is_whole: bool
    place: int
    """Index of its first element among the elements of all parameters."""
    is_begun: bool = False
    """True once its state exists."""
    counts: dict[str, Any] = field(default_factory=dict)
    """State that has not an element for each of the parameter's, such as a count of steps."""

    @property
    def size(self) -> int:
        return self.end - self.begin

    def of(self, tensor: Tensor) -> Tensor:
        """Its elements of a tensor that lies in memory as the parameter does."""
        return tensor if self.is_whole else flat(tensor)[self.begin : self.end]

    def shaped(self, elements: Tensor) -> Tensor:
        """Its elements in the order of the storage (1-D), in its shape."""
        return elements.as_strided(self.parameter.shape, self.parameter.stride()) if self.is_whole else elements


def rounds_of(groups: Sequence[Mapping[str, Any]], size: int) -> Iterator[list[Piece]]:
    """Divide the parameters into rounds of at most `size` elements."""
    pieces: list[Piece] = []
    left, place = size, 0
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            begin = 0
            while begin < parameter.numel():
                end = min(begin + left, parameter.numel())
                pieces.append(Piece(parameter, number, begin, end, end - begin == parameter.numel(), place))
                left, place = left - (end - begin), place + end - begin
                begin = end
                if left == 0:
                    yield pieces
                    pieces, left = [], size
    if pieces:
        yield pieces


class Scratch:
    """Memory for what is cast, for one update: a buffer for each kind of tensor, reused from round to round."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffers: dict[str, Tensor] = {}

    def in_float32(self, name: str, pieces: Sequence[Piece], parts: Sequence[Tensor]) -> list[Tensor]:
        """The pieces' parts in float32: those in half precision are cast, the others are what they were."""
        sizes = [part.numel() if part.dtype in HALF else 0 for part in parts]
        if not any(sizes):
            return [part.detach() for part in parts]
        if name not in self._buffers:
            self._buffers[name] = torch.empty(self._size, device=parts[0].device)
        cast = torch.split(self._buffers[name][: sum(sizes)], sizes)
        found = [
            piece.shaped(to) if size else part.detach()
            for piece, part, to, size in zip(pieces, parts, cast, sizes, strict=True)
        ]
        copy_all([(to, part) for to, part, size in zip(found, parts, sizes, strict=True) if size])
        return found


def copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair to the first."""
    if pairs:
        torch._foreach_copy_([to for to, _ in pairs], [of for _, of in pairs])


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient, in memory as the parameter is."""
    gradient = parameter.grad
    assert gradient is not None, "a parameter without gradient is not updated"
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype, requires_grad=False).copy_(gradient)


def is_dense(tensor: Tensor) -> bool:
    """Tell whether the elements of a tensor fill a span of its storage, each place once."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def is_of(parameter: nn.Parameter, value: Any) -> bool:
    """Tell whether a part of the state has an element for each of the parameter's."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape


def flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of its storage."""
    return tensor.as_strided((tensor.numel(),), (1,))
