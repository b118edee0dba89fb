"""A lack of memory is told from other errors, and in which phase it ended a training: each part of a step runs out."""

import contextlib

import pytest
import torch
from assembled import MLP, assemble
from devices import needs_cuda
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.memory_limit import MemoryLimit, is_out_of_memory
from ampsweep.recorder.out_of_memory import out_of_memory
from ampsweep.tasks.classification import Classification


class ExhaustedError(Exception):
    """What the allocator would raise."""


def exhausts(*_):
    raise ExhaustedError


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ExhaustedError


class OnlyInBackward(nn.Module):
    """Is computed a second time in backward, by activation checkpointing, and then exhausts the memory."""

    def __init__(self, model):
        super().__init__()
        self.model, self.num_calls = model, 0

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)

    def inner(self, x):
        self.num_calls += 1
        return exhausts() if self.num_calls > 1 else self.model(x)


class Unreadable:
    def __iter__(self):
        exhausts()


class NoBatch:
    def train_batch(self, index):
        exhausts()


class InTask(Classification):
    def __init__(self, where):
        super().__init__()
        self.where = where

    def loss(self, model, batch):
        if self.where == "forward":
            exhausts()
        loss = super().loss(model, batch)
        return InBackward.apply(loss) if self.where == "backward" else loss

    def evaluate(self, model, batch):
        return exhausts() if self.where == "eval" else super().evaluate(model, batch)


def test_a_lack_of_memory_is_told_from_other_errors():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError())
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))


NO_ENGINE = RuntimeError("GET was unable to find an engine to execute this computation")
"""What a convolution says both of a dtype that cuDNN cannot do and of workspaces for which there was no room."""


@pytest.fixture
def full_device(monkeypatch):
    """A CUDA device whose allocator has refused so many requests."""

    def full_device(num_refused):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        counts = [{}, {"num_ooms": num_refused}]  # of a device that was never used, and of the run's
        monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: counts[device])
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 139 * 2**30)

    return full_device


def test_a_convolution_without_an_engine_may_lack_memory(full_device):
    assert not is_out_of_memory(NO_ENGINE)
    full_device(num_refused=0)
    assert not is_out_of_memory(NO_ENGINE)
    full_device(num_refused=3)
    assert is_out_of_memory(NO_ENGINE)
    assert not is_out_of_memory(ValueError(str(NO_ENGINE)))


def test_such_a_lack_is_told_with_what_the_device_held(full_device):
    full_device(num_refused=3)
    device = torch.device("cuda", 1)
    oom = out_of_memory(NO_ENGINE, device, MemoryLimit(device, None))
    assert (oom.in_use_bytes, oom.requested_bytes) == (139 * 2**30, None)
    assert oom.error == f"RuntimeError: {NO_ENGINE}"


def test_the_hosts_lack_is_told_with_what_the_process_held(full_device):
    full_device(num_refused=0)
    device = torch.device("cuda", 1)
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes")
    assert 0 < out_of_memory(error, device, MemoryLimit(device, None)).in_use_bytes < 100 * 2**30


@needs_cuda
def test_on_cuda_a_convolution_without_room_lacks_memory():
    device, held = torch.device("cuda", 0), []
    convolution = nn.Conv2d(256, 256, 3, padding=1, device=device)
    x = torch.randn(16, 256, 64, 64, device=device, requires_grad=True)
    output = convolution(x)
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


def phase(training):
    with pytest.raises(ExhaustedError):
        training.train()
    return training.trainer.recorder.phase


@pytest.mark.parametrize("where", ["forward", "backward", "eval"])
@pytest.mark.parametrize("precision", ["fp32", "amp_fp16"])
def test_the_pass_is_told(where, precision):
    training = assemble(*MLP, f"precision={precision}", "trainer.steps=2", task=InTask(where))
    assert phase(training) == where


def test_what_is_computed_again_in_backward_is_backward():
    training = assemble(*MLP, "trainer.steps=2")
    training.trainer.model = OnlyInBackward(training.trainer.model)
    assert phase(training) == "backward"


@pytest.mark.parametrize("precision", ["fp32", "amp_fp16"])
def test_the_optimizer_is_told(precision):
    training = assemble(*MLP, f"precision={precision}", "trainer.steps=2", "precision.init_scale=16")
    training.trainer.optimizers["optimizer"].register_step_pre_hook(exhausts)
    assert phase(training) == "optimizer"


@pytest.mark.parametrize("limit", ["1.0", "null"])
def test_clipping_and_the_norm_of_a_row_are_the_optimizers(limit):
    training = assemble(*MLP, "trainer.steps=2", f"trainer.max_grad_norm={limit}")
    training.trainer._parameters = dict.fromkeys(training.trainer._parameters, Unreadable())
    assert phase(training) == "optimizer"


def test_getting_a_batch_is_told():
    training = assemble(*MLP, "trainer.steps=2")
    training.trainer.data = NoBatch()
    assert phase(training) == "data"


def test_what_comes_between_steps_is_no_phase_of_one():
    training = assemble(*MLP, "trainer.steps=2")
    training.trainer.recorder._log_row = exhausts
    assert phase(training) == "other"
