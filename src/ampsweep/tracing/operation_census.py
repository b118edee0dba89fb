"""Census of a traced step's arithmetic: its operations by dtype, and which of them ran where and how."""

import inspect
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils import checkpoint

from ampsweep.tracing.flops import formulas, recomputations

_FORWARD_CONVOLUTION: Final = torch.ops.aten.convolution
_CONVOLUTIONS: Final = (_FORWARD_CONVOLUTION, torch.ops.aten.convolution_backward)


class OperationCensus:
    """Counts of the floating-point operations of matrix multiplications, convolutions and attention.

    They are counted by the dtype of the operands.
    """

    def __init__(self) -> None:
        self._formulas, self._recomputations = formulas(), recomputations()
        self.flops: Counter[torch.dtype] = Counter()
        """All operations; those that follow are parts of them."""
        self.recomputed: Counter[torch.dtype] = Counter()
        """Done a second time: by activation checkpointing, and by backward of fused attention."""
        self.forward: Counter[torch.dtype] = Counter()
        """Done outside backward."""
        self.regions: dict[str, Counter[torch.dtype]] = defaultdict(Counter)
        """The parts of `forward` done in each region of the model."""
        self.checkpointed: Counter[torch.dtype] = Counter()
        """Done outside backward within `torch.utils.checkpoint`."""
        self.repeated: Counter[torch.dtype] = Counter()
        """Done again in backward by `torch.utils.checkpoint`."""
        self.num_repeated = 0
        """Number of operators, of those that count and all others, that it called again in backward."""
        self.convolutions: Counter[torch.dtype] = Counter()
        """Done by convolutions, forward and backward, without those done a second time."""
        self.forward_convolutions: Counter[torch.dtype] = Counter()
        """Done by convolutions outside backward, save where input and weight lie the same in either format."""
        self.channels_last: Counter[torch.dtype] = Counter()
        """The part of those whose operands, input and weight, lay in memory with the channels last."""

    def add(
        self,
        operator: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        dtype: torch.dtype | None,
        *,
        in_backward: bool,
        records: bool,
        region: str | None,
    ) -> None:
        """Add an operator that has run.

        Args:
            operator: the packet of its overloads.
            dtype: that of its first operand; None if it has none.
            in_backward: it ran in a backward pass, and
            records: autograd recorded it there.
            region: the region of the model that it ran in outside backward.
        """
        is_repeated = records and _is_checkpointed()
        self.num_repeated += is_repeated
        if operator not in self._formulas or dtype is None:
            return
        flops = self._formulas[operator](*args, **kwargs, out_val=result)
        self.flops[dtype] += flops
        if is_repeated:
            self.recomputed[dtype] += flops
            self.repeated[dtype] += flops
        elif operator in self._recomputations:
            self.recomputed[dtype] += self._recomputations[operator](*args, **kwargs)
        if operator in _CONVOLUTIONS and not is_repeated:
            self.convolutions[dtype] += flops
        if not in_backward:
            if region is not None:
                self.regions[region][dtype] += flops
            self._add_forward(operator, args, flops, dtype)

    def _add_forward(self, operator: Any, args: Sequence[Any], flops: int, dtype: torch.dtype) -> None:
        self.forward[dtype] += flops
        if _is_checkpointed():
            self.checkpointed[dtype] += flops
        if operator is _FORWARD_CONVOLUTION:
            is_last = all(operand.is_contiguous(memory_format=torch.channels_last) for operand in args[:2])
            if not (is_last and all(operand.is_contiguous() for operand in args[:2])):
                self.forward_convolutions[dtype] += flops
                if is_last:
                    self.channels_last[dtype] += flops


def _is_checkpointed() -> bool:
    """Tell whether torch.utils.checkpoint calls the current operator: in backward, to recompute an activation.

    Autograd's own operators run without recording; those that record (a gradient of a gradient) are not called there.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename != checkpoint.__file__:
        frame = frame.f_back
    return frame is not None
