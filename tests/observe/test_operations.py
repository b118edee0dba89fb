"""The operations of a step, counted by hand: traced, and profiled in compiled code without changing a bit."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile
from torch.utils import flop_counter
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.feeding import fed
from ampsweep.observe.flops import Operations, formulas
from ampsweep.observe.profiled_step import _recomputed, profile_step
from ampsweep.observe.step import trace_step
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.target_device import TargetDevice

aten = torch.ops.aten
MATMUL = 2 * (2 * 4) * 16 * 16 * 8


def traced(model, x, dtype=None, use_reentrant=None):
    with trace_step(model) as trace, torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        output = model(x) if use_reentrant is None else checkpoint(model, x, use_reentrant=use_reentrant)
        output.float().sum().backward()
    return trace.result


def inputs(*shape, requires_grad=True):
    return torch.randn(shape, requires_grad=requires_grad)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_a_linear_layer_multiplies_thrice_in_its_dtype(dtype):
    name = str(dtype or torch.float32).removeprefix("torch.")
    assert traced(nn.Linear(8, 3), inputs(5, 8), dtype).flops == {name: 3 * 2 * 5 * 8 * 3}
    model = nn.Linear(8, 1)
    model.forward = lambda x: x @ model.weight[0]
    assert traced(model, inputs(5, 8, requires_grad=False), dtype).flops == {name: 2 * 2 * 5 * 8}


@pytest.mark.parametrize("groups", [1, 8])
def test_each_gradient_of_a_convolution_costs_a_forward_pass(groups):
    layer = nn.Conv2d(8, 16, kernel_size=3, padding=1, stride=2, groups=groups)
    forward = 2 * (2 * 5 * 5) * 3 * 3 * (8 // groups) * 16
    assert traced(layer, inputs(2, 8, 10, 10, requires_grad=False)).flops == {"float32": 2 * forward}
    assert traced(layer, inputs(2, 8, 10, 10)).flops == {"float32": 3 * forward}
    transposed = nn.ConvTranspose2d(8, 16, kernel_size=3, stride=2, groups=groups)
    assert traced(transposed, inputs(2, 8, 5, 5)).flops == {"float32": 3 * forward}, "by positions of its inputs"


def attention(shared=1, **settings):
    """A layer of attention in which several heads of queries may share one of keys and values."""
    layer = nn.Linear(8, 8)
    grouped = {"enable_gqa": shared > 1, **settings}

    def forward(x):
        queries = x * layer.bias[0]
        keys = queries[:, ::shared]
        return F.scaled_dot_product_attention(queries, keys, keys, **grouped)

    layer.forward = forward
    return layer


@pytest.mark.parametrize("settings", [{}, {"is_causal": True}, {"shared": 2}, {"is_causal": True, "dropout_p": 0.1}])
def test_attention_multiplies_twice_and_five_times_backward(settings):
    """Fused attention multiplies queries and keys again in backward, which is no progress of the model."""
    found = traced(attention(**settings), inputs(2, 4, 16, 8, requires_grad=False))
    is_fused = "dropout_p" not in settings
    assert found.flops == {"float32": (2 + 4 + is_fused) * MATMUL}
    assert found.recomputed_flops == ({"float32": MATMUL} if is_fused else {})
    assert found.model_flops == {"float32": (2 + 4) * MATMUL}


def test_attention_counts_as_torch_counts_it():
    """With keys of another length and values of another size than the queries'."""
    grad, query, key, value = (torch.empty(2, 4, *sizes) for sizes in ((16, 12), (16, 8), (24, 8), (24, 12)))
    forward, backward = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_backward
    for operator, of_torch, operands in (
        (forward, flop_counter.sdpa_flop_count, [query, key, value]),
        (backward, flop_counter.sdpa_backward_flop_count, [grad, query, key, value]),
    ):
        assert formulas()[operator](*operands, out_val=None) == of_torch(*(tensor.shape for tensor in operands))


@pytest.mark.parametrize(("capability", "dtype"), [((8, 0), torch.bfloat16), ((7, 5), torch.float32)])
def test_cudas_kernels_of_attention_count_alike(capability, dtype):
    device = FakeDevice(TargetDevice("cuda", capability))
    model = device.adopt(attention(is_causal=True).to("meta", dtype))
    with device(), device.trace_step(model) as trace:
        model(torch.randn(2, 4, 16, 8, dtype=dtype)).sum().backward()
    assert sum(trace.result.flops.values()) == 7 * MATMUL
    assert sum(trace.result.model_flops.values()) == 6 * MATMUL


IMAGES, OF_LAYER = (2, 4, 6, 6), 2 * (2 * 6 * 6) * 3 * 3 * 4 * 4


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_fused_recurrent_layer_counts_as_its_products(is_packed):
    """float64 has no fused kernel on a CPU: there the products are operators of their own."""

    def flops(dtype):
        layer = nn.LSTM(8, 16, num_layers=2, bidirectional=True).to(dtype)
        x = torch.ones(5, 3, 8, dtype=dtype, requires_grad=True)
        given = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 5, 5])) if is_packed else x
        states = [torch.zeros(4, 3, 16, dtype=dtype, requires_grad=True) for _ in range(2)]
        with trace_step(layer) as traced:
            output = layer(given, states)[0]
            (output.data if is_packed else output).sum().backward()
        return traced.result.flops

    assert flops(torch.float32)["float32"] == flops(torch.float64)["float64"] > 0


def test_convolutions_are_counted_apart_from_matmuls():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 6 * 6, 3))
    found = traced(model, inputs(*IMAGES, requires_grad=False))
    assert found.convolution_flops == {"float32": 2 * OF_LAYER}, "the images need no gradient"
    assert found.flops["float32"] == 2 * OF_LAYER + 3 * 2 * 2 * 4 * 6 * 6 * 3
    assert (found.num_repeated, found.recomputed_flops) == (0, {})


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_a_checkpoint_does_again_is_counted_apart(use_reentrant):
    layers = (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
    found = traced(nn.Sequential(*layers), inputs(*IMAGES), use_reentrant=use_reentrant)
    assert found.recomputed_flops == found.forward_flops == {"float32": 2 * OF_LAYER}
    assert found.num_repeated >= 4
    assert found.convolution_flops == found.model_flops == {"float32": 6 * OF_LAYER}

    # Without reentrance recomputation stops where the last layer's input is there again.
    short = traced(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), inputs(5, 6), use_reentrant=use_reentrant)
    assert short.recomputed_flops == {"float32": (2 if use_reentrant else 1) * 2 * 5 * 6 * 6}

    without_matmuls = traced(nn.Sequential(nn.PReLU(4), nn.Sigmoid()), inputs(*IMAGES), use_reentrant=use_reentrant)
    assert without_matmuls.recomputed_flops == {}
    assert without_matmuls.num_repeated > 0


BATCH, WIDTH = 32, 64


class Net(nn.Module):
    """A convolution, attention and matrix multiplications; or two of these, recomputed."""

    def __init__(self, recomputes=False):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.first, self.last, self.recomputes = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10), recomputes

    def forward(self, x):
        if self.recomputes:
            return self.last(checkpoint(lambda h: self.first(self.first(h)).relu(), x, use_reentrant=False))
        heads = self.convolution(x.view(-1, 1, 8, 8)).flatten(1).view(-1, 2, 2, 16)
        mixed = F.scaled_dot_product_attention(heads, heads, heads).flatten(1)
        return self.last(self.first(mixed).relu())


class Training:
    def __init__(self, model, dtype=None, compiled=False):
        self.model, self.dtype = model, dtype
        if compiled:
            torch.compiler.reset()
            self.model.compile(backend="aot_eager")
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        self.batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
        self.step()

    def step(self, micro_batches=1, steps=True):
        for _ in range(micro_batches):
            x = fed(lambda: self.batch.clone())
            with torch.autocast("cpu", self.dtype, enabled=self.dtype is not None):
                loss = self.model(x).square().mean()
            loss.backward()
        if steps:
            self.optimizer.step()
        self.optimizer.zero_grad()

    def profiled(self, **settings):
        with profile_step(self.model, self.optimizer, device=torch.device("cpu")) as profiled:
            self.step(**settings)
        return profiled.result

    def traced(self, **settings):
        with trace_step(self.model, self.optimizer) as trace:
            self.step(**settings)
        return trace.result


@pytest.mark.parametrize(("dtype", "compiled"), [(None, True), (torch.bfloat16, True), (torch.bfloat16, False)])
def test_the_operations_are_those_of_the_traced_eager_step(dtype, compiled):
    found, expected = Training(Net(), dtype, compiled).profiled(), Training(Net(), dtype).traced()
    for operations in ("flops", "forward_flops", "recomputed_flops"):
        assert getattr(found, operations) == getattr(expected, operations)
    assert found.is_compiled


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_bytes_are_those_traced(micro_batches):
    training = Training(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
    found, expected = (look(micro_batches=micro_batches) for look in (training.profiled, training.traced))
    assert found.peak_bytes == expected.peak_bytes  # in float32 these kernels need no workspace
    assert sum(found.peak.values()) == found.peak_bytes
    exact = ("parameters", "optimizer_state", "gradients", "other")
    assert {key: found.peak.get(key, 0) for key in exact} == {key: expected.peak[key] for key in exact}
    assert found.held_bytes == expected.held_bytes
    assert found.end_of_forward["activations"] == expected.end_of_forward["activations"]
    assert found.end_of_forward["other"] == training.batch.nbytes, "the batch"
    assert "autocast_weights" not in found.peak, "activations, too: nobody can distinguish them"


def test_not_a_bit_of_the_training_changes():
    model = Net()
    bare, training = Training(copy.deepcopy(model), torch.bfloat16), Training(model, torch.bfloat16)
    for look in (training.step, training.profiled, training.step):
        bare.step()
        look()
    assert all(map(torch.equal, bare.model.parameters(), training.model.parameters()))
    assert not training.optimizer._optimizer_step_pre_hooks
    assert training.profiled(steps=False) is None, "without an update"
    with profile(acc_events=True):
        assert training.profiled() is None, "beside another profiler"


def test_recomputation_in_compiled_code_is_unknown():
    found = Training(Net(recomputes=True), compiled=True).profiled()
    assert found.recomputed_flops is None
    assert found.model_flops == {}
    census = [Operations(flops=Counter(f=100 + n), forward_flops=Counter(f=100)) for n in (200, 204, 210)]
    assert [_recomputed(counts) is not None for counts in census] == [True, True, False]
