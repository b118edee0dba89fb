"""Activation checkpointing: activations inside a block are recomputed in backward instead of kept."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class CheckpointedModel(nn.Module):
    """A model built of blocks, each of which can be recomputed in backward. Subclasses call every block through
    ``run``. Parameters, their names, gradients and running statistics are the same with and without checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False

    def gradient_checkpointing_enable(self) -> None:
        """Keep only the inputs of blocks for backward. The names are Hugging Face's."""
        self.gradient_checkpointing = True

    def run(self, block: nn.Module, *inputs: object) -> Tensor:
        """Run ``block(*inputs)``, checkpointed if that is enabled and gradients are recorded."""
        output: Tensor
        if not (self.gradient_checkpointing and torch.is_grad_enabled()):
            output = block(*inputs)
        elif torch.compiler.is_compiling():
            # The compiler recomputes operators, not Python: it updates running statistics only once, and Dynamo
            # refuses a context_fn that is a closure.
            output = checkpoint(block, *inputs, use_reentrant=False)
        else:
            contexts = lambda: (nullcontext(), _FrozenStatistics(block))  # noqa: E731
            output = checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts)
        return output


class _FrozenStatistics(AbstractContextManager[None]):
    """Normalizes by the batch without updating running statistics, since the recomputation sees no new batch. The
    running buffers stay in place, because a checkpoint must save the same tensors twice. The context can be entered
    again: a gradient penalty makes backward pass a block twice."""

    def __init__(self, block: nn.Module) -> None:
        self._norms = [module for module in block.modules() if isinstance(module, nn.BatchNorm2d)]

    def __enter__(self) -> None:
        self._saved = [(norm.momentum, norm.num_batches_tracked) for norm in self._norms]
        for norm in self._norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None

    def __exit__(self, *_: object) -> None:
        for norm, (momentum, num_batches_tracked) in zip(self._norms, self._saved, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, num_batches_tracked
