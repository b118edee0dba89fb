"""What custom autograd functions return and save counts as what autograd records, however they are applied."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.step import trace_step

ROWS, INPUTS, OUTPUTS = 16, 64, 32


class Product(torch.autograd.Function):
    """A product in bfloat16 that saves its operands so, and an intermediate result."""

    @staticmethod
    def forward(ctx, x, weight):
        low, wide = weight.bfloat16(), x.bfloat16()
        product = wide @ low
        ctx.save_for_backward(wide, low, product * 2)
        return product.float()

    @staticmethod
    def backward(ctx, gradient):
        wide, low, twice = ctx.saved_tensors
        gradient = gradient.bfloat16() + 0 * twice
        return (gradient @ low.t()).float(), (wide.t() @ gradient).float()


BOUND = Product.apply  # as most people write it: bound when the module is imported


class Split(Product):
    @staticmethod
    def forward(x, weight):
        return (x.bfloat16() @ weight.bfloat16()).float()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*(tensor.bfloat16() for tensor in (*inputs, output)))


def traced(apply, recomputes=False):
    before, weight = nn.Linear(INPUTS, INPUTS), nn.Parameter(torch.randn(INPUTS, OUTPUTS))
    model = nn.ParameterList([*before.parameters(), weight])
    x = torch.ones(ROWS, INPUTS, requires_grad=recomputes)
    run = lambda x: apply(before(x), weight) + 1  # noqa: E731
    with trace_step(model) as trace:
        assert "__getattribute__" in vars(type(torch.autograd.Function))
        (checkpoint(run, x, use_reentrant=False) if recomputes else run(x)).sum().backward()
    assert "__getattribute__" not in vars(type(torch.autograd.Function)), "torch's class is restored"
    return trace.result


@pytest.mark.parametrize("apply", [BOUND, lambda *args: Product.apply(*args), Split.apply])
def test_results_and_saved_tensors_have_their_category(apply):
    end = traced(apply).end_of_forward
    saved = 2 * ROWS * (INPUTS + OUTPUTS)
    assert (end["autocast_weights"], end["temporary"]) == (2 * INPUTS * OUTPUTS, 0)
    assert saved <= end["activations"] <= saved + 4 * ROWS * OUTPUTS + 4, "backward does not need the result"


def test_operations_are_counted_forward_backward_and_again():
    linear, product = 2 * ROWS * INPUTS * INPUTS, 2 * ROWS * INPUTS * OUTPUTS
    step = traced(BOUND)
    assert step.flops == {"float32": 2 * linear, "bfloat16": 3 * product}
    assert step.forward_flops == {"float32": linear, "bfloat16": product}
    assert traced(BOUND, recomputes=True).recomputed_flops == step.forward_flops


def test_what_autograd_does_not_record_is_temporary():
    context = SimpleNamespace(save_for_backward=lambda *tensors: vars(context).update(saved=tensors))
    without_gradient = lambda x, weight: x @ weight + torch.no_grad()(BOUND)(x, weight)  # noqa: E731

    def called_by_hand(x, weight):
        product = BOUND(x, weight)
        with torch.no_grad():
            Product.forward(context, x, weight)
        return product

    assert traced(without_gradient).end_of_forward["autocast_weights"] == 0
    assert traced(called_by_hand).end_of_forward["autocast_weights"] == 2 * INPUTS * OUTPUTS
