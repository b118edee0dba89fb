"""Operations of one operator, forward and backward, counted by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.tracing.step import trace_step


def flops(model, x, dtype=None):
    with trace_step(model) as trace, torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        output = model(x)
        (output.sum() if dtype is None else output.float().sum()).backward()
    return trace.result.flops


@pytest.mark.parametrize(
    ("dtype", "name"), [(None, "float32"), (torch.bfloat16, "bfloat16"), (torch.float16, "float16")]
)
def test_a_linear_layer_multiplies_thrice_in_its_dtype(dtype, name):
    x = torch.randn(5, 8, requires_grad=True)
    assert flops(nn.Linear(8, 3), x, dtype) == {name: 3 * 2 * 5 * 8 * 3}


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_each_gradient_of_a_convolution_costs_a_forward_pass(groups):
    layer = nn.Conv2d(8, 16, kernel_size=3, padding=1, stride=2, groups=groups)
    forward = 2 * (2 * 5 * 5) * 3 * 3 * (8 // groups) * 16
    assert flops(layer, torch.randn(2, 8, 10, 10)) == {"float32": 2 * forward}
    assert flops(layer, torch.randn(2, 8, 10, 10, requires_grad=True)) == {"float32": 3 * forward}


def test_a_transposed_convolution_counts_its_inputs():
    layer = nn.ConvTranspose2d(8, 16, kernel_size=3, stride=2, groups=2)
    forward = 2 * (2 * 5 * 5) * 3 * 3 * 8 * (16 // 2)
    assert flops(layer, torch.randn(2, 8, 5, 5, requires_grad=True)) == {"float32": 3 * forward}


class Attention(nn.Module):
    def __init__(self, is_causal, dropout=0.0):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.is_causal, self.dropout = is_causal, dropout

    def forward(self, x):
        q = k = v = x * self.scale
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal, dropout_p=self.dropout)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_multiplies_twice_and_five_times_backward(is_causal):
    matmul = 2 * (2 * 4) * 16 * 16 * 8
    assert flops(Attention(is_causal), torch.randn(2, 4, 16, 8)) == {"float32": (2 + 5) * matmul}


def test_attention_in_parts_multiplies_four_times_backward():
    matmul = 2 * (2 * 4) * 16 * 16 * 8
    assert flops(Attention(is_causal=True, dropout=0.1), torch.randn(2, 4, 16, 8)) == {"float32": (2 + 4) * matmul}


def test_a_matrix_times_a_vector_counts():
    class MatrixVector(nn.Module):
        def __init__(self):
            super().__init__()
            self.vector = nn.Parameter(torch.randn(8))

        def forward(self, x):
            return x @ self.vector

    assert flops(MatrixVector(), torch.randn(5, 8)) == {"float32": 2 * 2 * 5 * 8}
