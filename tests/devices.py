"""Marks for tests that need a device which is not everywhere."""

import pytest
import torch

from ampsweep.launch.device_lock import free_devices

HAS_TF32 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
TF32 = (pytest.mark.gpu, pytest.mark.skipif(not HAS_TF32, reason="needs a CUDA device with TF32"))
CPU_AND_CUDA = ("cpu", pytest.param("cuda", marks=CUDA))
"""Parameters for what is the same on both."""


def needs_cuda(test):
    return CUDA[0](CUDA[1](test))


def needs_gpus(number):
    """Mark a test of several GPUs."""
    found = torch.cuda.device_count()

    def mark(test):
        return pytest.mark.gpu(pytest.mark.skipif(found < number, reason=f"needs {number} GPUs, {found} here")(test))

    return mark


def needs_tf32(test):
    return TF32[0](TF32[1](test))


def device_lock(device, on_wait=None, stop=None):
    """Hold one device."""
    return free_devices([device], 1, on_wait, stop)
