"""Marks that several rooms' tests share; `-m gpu` selects the tests that carry `on_cuda`."""

import pytest
import torch

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_cuda(test):
    """Mark a test as one that runs on a CUDA device and is skipped, with that reason, where there is none."""
    return pytest.mark.gpu(NEEDS_CUDA(test))
