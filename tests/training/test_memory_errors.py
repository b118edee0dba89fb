"""A lack of memory is told from other errors, and in which phase it ended a training: each part of a step runs out."""

import pytest
import torch
from assembled import MLP, assemble
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.tasks.classification import Classification
from ampsweep.training.out_of_memory import is_out_of_memory, phase_of


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


def phase(training):
    with pytest.raises(ExhaustedError) as raised:
        training.train()
    return phase_of(raised.value)


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
    training.trainer.optimizer.register_step_pre_hook(exhausts)
    assert phase(training) == "optimizer"


@pytest.mark.parametrize("limit", ["1.0", "null"])
def test_clipping_and_the_norm_of_a_row_are_the_optimizers(limit):
    training = assemble(*MLP, "trainer.steps=2", f"trainer.max_grad_norm={limit}")
    training.trainer._parameters = Unreadable()
    assert phase(training) == "optimizer"


def test_getting_a_batch_is_told():
    training = assemble(*MLP, "trainer.steps=2")
    training.trainer.data = NoBatch()
    assert phase(training) == "data"


def test_what_comes_between_steps_is_no_phase_of_one():
    training = assemble(*MLP, "trainer.steps=2")
    training.trainer._log = exhausts
    assert phase(training) == "other"
