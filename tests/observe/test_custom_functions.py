"""What custom autograd functions return and save counts as what autograd records, however they are applied."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.step import trace_step

ROWS, INPUTS, OUTPUTS = 16, 64, 32


class Product(torch.autograd.Function):
    """A product in bfloat16 that keeps its operands so, and an intermediate result that it needs again."""

    @staticmethod
    def forward(ctx, x, weight):
        low, wide = weight.bfloat16(), x.bfloat16()
        product = wide @ low
        scratch = product * 2
        ctx.save_for_backward(wide, low, scratch)
        return product.float()

    @staticmethod
    def backward(ctx, gradient):
        wide, low, scratch = ctx.saved_tensors
        gradient = gradient.bfloat16() + 0 * scratch
        return (gradient @ low.t()).float(), (wide.t() @ gradient).float()


BOUND = Product.apply
"""As most people write it: bound when the module is imported."""


class Split(Product):
    """The same with a context of its own, which makes what is kept."""

    @staticmethod
    def forward(x, weight):
        return (x.bfloat16() @ weight.bfloat16()).float()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*(tensor.bfloat16() for tensor in (*inputs, output)))


class Net(nn.Module):
    def __init__(self, apply):
        super().__init__()
        self.apply_function = apply
        self.before, self.weight = nn.Linear(INPUTS, INPUTS), nn.Parameter(torch.randn(INPUTS, OUTPUTS))

    def forward(self, x):
        return self.apply_function(self.before(x), self.weight) + 1


def traced(apply, run=lambda model, x: model(x)):
    model = Net(apply)
    with trace_step(model) as trace:
        loss = run(model, torch.ones(ROWS, INPUTS)).sum()
        loss.backward()
    return trace.result


@pytest.mark.parametrize("apply", [BOUND, lambda *args: Product.apply(*args), Split.apply])
def test_what_they_return_and_save_has_its_category(apply):
    found = traced(apply).end_of_forward
    assert found["autocast_weights"] == 2 * INPUTS * OUTPUTS
    kept = 2 * ROWS * (INPUTS + OUTPUTS)  # saved; what is returned is needed by nobody
    assert kept <= found["activations"] <= kept + 4 * ROWS * OUTPUTS + 4, "with the sum, a loss"
    assert found["temporary"] == 0


def test_their_operations_are_counted_forward_and_backward():
    linear, product = 2 * ROWS * INPUTS * INPUTS, 2 * ROWS * INPUTS * OUTPUTS
    step = traced(BOUND)
    assert step.flops == {"float32": 2 * linear, "bfloat16": 3 * product}
    assert step.forward_flops == {"float32": linear, "bfloat16": product}


def test_what_is_not_recorded_stays_temporary():
    def without_gradient(x, weight):
        with torch.no_grad():
            kept = BOUND(x, weight)
        return x @ weight + kept

    step = traced(without_gradient)
    assert step.end_of_forward["autocast_weights"] == 0


def test_a_forward_called_by_hand_is_its_operators():
    kept = []
    context = SimpleNamespace(save_for_backward=lambda *tensors: kept.extend(tensors))

    def twice(x, weight):
        product = BOUND(x, weight)
        with torch.no_grad():
            Product.forward(context, x, weight)
        return product

    assert traced(twice).end_of_forward["autocast_weights"] == 2 * INPUTS * OUTPUTS


def test_a_checkpoint_recomputes_them():
    def recomputed(model, x):
        return checkpoint(model, x.requires_grad_(), use_reentrant=False)

    assert traced(BOUND, recomputed).recomputed_flops == traced(BOUND).forward_flops


def test_torchs_class_is_its_own_again():
    metaclass = type(torch.autograd.Function)
    with trace_step(nn.Linear(1, 1)):
        assert "__getattribute__" in vars(metaclass)
    assert "__getattribute__" not in vars(metaclass)
