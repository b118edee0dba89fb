"""Operations of one operator, forward and backward, counted by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import flop_counter

from ampsweep.observe.flops import formulas
from ampsweep.observe.step import trace_step
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.target_device import TargetDevice

aten = torch.ops.aten


def traced(model, x, dtype=None):
    with trace_step(model) as trace, torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        output = model(x)
        (output.sum() if dtype is None else output.float().sum()).backward()
    return trace.result


def flops(model, x, dtype=None):
    return traced(model, x, dtype).flops


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


class SharedKeys(nn.Module):
    """Two heads of queries for each of keys and values."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        queries = x * self.scale
        keys = values = queries[:, ::2]
        return F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)


def test_attention_whose_heads_share_keys_multiplies_as_often():
    matmul = 2 * (2 * 4) * 16 * 16 * 8
    assert flops(SharedKeys(), torch.randn(2, 4, 16, 8)) == {"float32": (2 + 5) * matmul}


@pytest.mark.parametrize("backward", [False, True])
def test_attention_counts_as_torch_counts_it(backward):
    """With keys of another length and values of another size than the queries'."""
    grad, query, key, value = (torch.empty(2, 4, *sizes) for sizes in ((16, 12), (16, 8), (24, 8), (24, 12)))
    operator, of_torch, operands = {
        False: (aten._scaled_dot_product_flash_attention, flop_counter.sdpa_flop_count, [query, key, value]),
        True: (
            aten._scaled_dot_product_flash_attention_backward,
            flop_counter.sdpa_backward_flop_count,
            [grad, query, key, value],
        ),
    }[backward]
    assert formulas()[operator](*operands, out_val=None) == of_torch(*(one.shape for one in operands))


def test_attention_in_parts_multiplies_four_times_backward():
    matmul = 2 * (2 * 4) * 16 * 16 * 8
    assert flops(Attention(is_causal=True, dropout=0.1), torch.randn(2, 4, 16, 8)) == {"float32": (2 + 4) * matmul}


def test_model_arithmetic_is_the_same_with_any_attention():
    """Fused attention multiplies queries and keys again in backward, which is no progress of the model."""
    x = torch.randn(2, 4, 16, 8)
    fused, in_parts = (traced(Attention(is_causal=True, dropout=dropout), x) for dropout in (0.0, 0.1))
    assert fused.recomputed_flops == {"float32": 2 * (2 * 4) * 16 * 16 * 8}
    assert in_parts.recomputed_flops == {}
    assert fused.model_flops == in_parts.model_flops


def on_cuda(capability, dtype):
    device = FakeDevice(TargetDevice("cuda", capability))
    model = device.adopt(Attention(is_causal=True).to("meta", dtype))
    with device(), device.trace_step(model) as trace:
        model(torch.randn(2, 4, 16, 8, dtype=dtype)).sum().backward()
    return {operations: sum(getattr(trace.result, operations).values()) for operations in ("flops", "model_flops")}


@pytest.mark.parametrize(("capability", "dtype"), [((8, 0), torch.bfloat16), ((7, 5), torch.float32)])
def test_so_it_is_with_the_kernels_of_cuda(capability, dtype):
    matmul = 2 * (2 * 4) * 16 * 16 * 8
    assert on_cuda(capability, dtype) == {"flops": 7 * matmul, "model_flops": 6 * matmul}


def test_a_matrix_times_a_vector_counts():
    class MatrixVector(nn.Module):
        def __init__(self):
            super().__init__()
            self.vector = nn.Parameter(torch.randn(8))

        def forward(self, x):
            return x @ self.vector

    assert flops(MatrixVector(), torch.randn(5, 8)) == {"float32": 2 * 2 * 5 * 8}
