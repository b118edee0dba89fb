"""A lack of memory is recognized among other errors, with the phase of the step in which it ended a training."""

import contextlib

import pytest
import torch
from assembled import MLP, assemble
from devices import needs_cuda
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.memory_limit import MemoryLimit, is_out_of_memory
from ampsweep.recorder.out_of_memory import out_of_memory

NO_ENGINE = RuntimeError("GET was unable to find an engine to execute this computation")
"""What a convolution says both of a dtype that cuDNN cannot do and of workspaces for which there was no room."""


def test_a_lack_of_memory_is_recognized_and_recorded(monkeypatch):
    counts = [{}, {"num_ooms": 0}]  # of a device that was never used, and of the run's, which refused no request yet
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: counts[device])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 139 * 2**30)
    for error in (
        MemoryError(),
        torch.OutOfMemoryError(),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ):
        assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(NO_ENGINE)
    device = torch.device("cuda", 1)
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes")
    assert 0 < out_of_memory(error, device, MemoryLimit(device, None)).in_use_bytes < 100 * 2**30, "of the process"
    counts[1]["num_ooms"] = 3
    assert is_out_of_memory(NO_ENGINE)
    assert not is_out_of_memory(ValueError(str(NO_ENGINE)))
    oom = out_of_memory(NO_ENGINE, device, MemoryLimit(device, None))
    assert (oom.in_use_bytes, oom.requested_bytes) == (139 * 2**30, None)
    assert oom.error == f"RuntimeError: {NO_ENGINE}"


@needs_cuda
def test_on_cuda_a_convolution_without_room_lacks_memory():
    device, held = torch.device("cuda", 0), []
    convolution = nn.Conv2d(256, 256, 3, padding=1, device=device)
    output = convolution(torch.randn(16, 256, 64, 64, device=device, requires_grad=True))
    try:
        for mib in (1024, 64, 2):
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    held.append(torch.empty(mib * 2**20, dtype=torch.uint8, device=device))
        with pytest.raises(RuntimeError) as raised:
            output.backward(torch.ones_like(output))
        assert is_out_of_memory(raised.value)
    finally:
        held.clear()
        torch.cuda.empty_cache()


class ExhaustedError(Exception):
    """Stands for the error of the allocator."""


def exhausts(*_, **__):
    raise ExhaustedError


def recomputes(training):
    """Compute the model again in backward, by activation checkpointing, and only then exhaust the memory."""
    model, calls = training.built.model, []
    forward = model.forward
    again = lambda x: exhausts() if calls else calls.append(x) or forward(x)  # noqa: E731
    model.forward = lambda x: checkpoint(again, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("phase", "exhaust"),
    [
        ("data", lambda training: setattr(training.trainer.data, "train_batch", exhausts)),
        ("forward", lambda training: training.use_loss(exhausts)),
        ("backward", lambda training: next(training.built.model.parameters()).register_hook(exhausts)),
        ("backward", recomputes),
        ("optimizer", lambda training: setattr(training.trainer, "_clip", exhausts)),
        ("optimizer", lambda training: training.optimizer.register_step_pre_hook(exhausts)),
        ("eval", lambda training: setattr(training.built.task, "evaluate", exhausts)),
        ("other", lambda training: setattr(training.trainer.recorder, "_log_row", exhausts)),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "amp_fp16"])
def test_the_phase_that_ran_out_of_memory_is_known(phase, exhaust, precision):
    training = assemble(*MLP, f"precision={precision}", "precision.init_scale=16", "trainer.steps=2")
    exhaust(training)
    with pytest.raises(ExhaustedError):
        training.train()
    assert training.trainer.recorder.phase == phase
