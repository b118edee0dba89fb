"""Chunks of parameters that an optimizer updates one after the other, and their float32 copies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

HALF: Final = (torch.bfloat16, torch.float16)


@dataclass(slots=True, eq=False)
class Chunk:
    """Elements `begin` to `end` of a parameter, in the order of its storage, that are updated at once.

    A whole parameter has its own shape, a part is 1-D.
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
    """State that is not elementwise, such as the number of steps."""

    @property
    def size(self) -> int:
        return self.end - self.begin

    def of(self, tensor: Tensor) -> Tensor:
        """The chunk's elements of a tensor with the parameter's memory layout."""
        return tensor if self.is_whole else flat(tensor)[self.begin : self.end]

    def shaped(self, elements: Tensor) -> Tensor:
        """Give elements in the order of the storage (1-D) the chunk's shape."""
        return elements.as_strided(self.parameter.shape, self.parameter.stride()) if self.is_whole else elements


def rounds_of(groups: Sequence[Mapping[str, Any]], size: int) -> Iterator[list[Chunk]]:
    """Divide the parameters of optimizer groups into rounds of at most `size` elements."""
    chunks: list[Chunk] = []
    left, place = size, 0
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            begin = 0
            while begin < parameter.numel():
                end = min(begin + left, parameter.numel())
                chunks.append(Chunk(parameter, number, begin, end, end - begin == parameter.numel(), place))
                left, place = left - (end - begin), place + end - begin
                begin = end
                if left == 0:
                    yield chunks
                    chunks, left = [], size
    if chunks:
        yield chunks


class Scratch:
    """Float32 buffers of an update, one for each kind of tensor, reused from round to round."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffers: dict[str, Tensor] = {}

    def in_float32(self, name: str, chunks: Sequence[Chunk], parts: Sequence[Tensor]) -> list[Tensor]:
        """Cast the parts that are in half precision to float32, and return the others as they are."""
        sizes = [part.numel() if part.dtype in HALF else 0 for part in parts]
        if not any(sizes):
            return [part.detach() for part in parts]
        if name not in self._buffers:
            self._buffers[name] = torch.empty(self._size, device=parts[0].device)
        cast = torch.split(self._buffers[name][: sum(sizes)], sizes)
        each = zip(chunks, parts, cast, sizes, strict=True)
        found = [chunk.shaped(to) if size else part.detach() for chunk, part, to, size in each]
        copy_all([(to, part) for to, part, size in zip(found, parts, sizes, strict=True) if size])
        return found


def copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair to the first."""
    if pairs:
        torch._foreach_copy_([to for to, _ in pairs], [of for _, of in pairs])


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient in the parameter's memory layout."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype, requires_grad=False).copy_(gradient)


def is_dense(tensor: Tensor) -> bool:
    """Return True if the elements of a tensor fill a span of its storage, each place once."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def is_of(parameter: nn.Parameter, value: Any) -> bool:
    """Return True if a value of the optimizer's state is elementwise."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape


def flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of its storage."""
    return tensor.as_strided((tensor.numel(),), (1,))
