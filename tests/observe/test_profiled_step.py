"""The profiled step: what a step took, compiled or not, and the dtypes that it computed in, without changing a bit."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.feeding import fed
from ampsweep.observe.flops import Operations
from ampsweep.observe.profiled_step import _recomputed, profile_step
from ampsweep.observe.step import trace_step

CPU = torch.device("cpu")
BATCH, WIDTH = 32, 64


class Net(nn.Module):
    """A convolution, attention and matrix multiplications."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x):
        heads = self.convolution(x.view(-1, 1, 8, 8)).flatten(1).view(-1, 2, 2, 16)
        mixed = F.scaled_dot_product_attention(heads, heads, heads).flatten(1)
        return self.last(self.first(mixed).relu())


class Training:
    def __init__(self, model, dtype=None, compiled=False):
        self.model, self.dtype = model, dtype
        if compiled:
            self.model.compile(backend="aot_eager")
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        self.batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))

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
        with profile_step(self.model, self.optimizer, device=CPU) as profiled:
            self.step(**settings)
        return profiled.result

    def traced(self, **settings):
        with trace_step(self.model, self.optimizer) as trace:
            self.step(**settings)
        return trace.result


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_operations_are_those_of_the_traced_eager_step(dtype, compiled):
    training, eager = Training(Net(), dtype, compiled), Training(Net(), dtype)
    training.step()
    found, expected = training.profiled(), eager.traced()
    assert found.flops == expected.flops
    assert found.forward_flops == expected.forward_flops
    assert found.recomputed_flops == expected.recomputed_flops
    assert found.is_compiled


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_bytes_are_those_traced_and_of_workspaces(micro_batches):
    training = Training(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
    training.step()
    found, expected = (look(micro_batches=micro_batches) for look in (training.profiled, training.traced))
    assert found.peak_bytes == expected.peak_bytes  # in float32 these kernels need no workspace
    assert sum(found.peak.values()) == found.peak_bytes
    exact = ("parameters", "optimizer_state", "gradients", "other")
    assert {key: found.peak.get(key, 0) for key in exact} == {key: expected.peak[key] for key in exact}
    assert found.held_bytes == expected.held_bytes


def test_what_backward_finds_is_activations():
    training = Training(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
    training.step()
    found, expected = training.profiled(), training.traced()
    assert found.end_of_forward["activations"] == expected.end_of_forward["activations"]
    assert "autocast_weights" not in found.peak  # which nobody can tell from activations, and so is absent


def test_not_a_bit_of_the_training_changes():
    model = Net()
    bare, training = Training(copy.deepcopy(model), torch.bfloat16), Training(model, torch.bfloat16)
    for look in (training.step, training.profiled, training.step):
        bare.step()
        look()
    pairs = zip(bare.model.parameters(), training.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert not training.optimizer._optimizer_step_pre_hooks


def test_how_much_compiled_code_recomputes_is_unknown():
    class Checkpointed(Net):
        def forward(self, x):
            return self.last(checkpoint(lambda h: self.first(self.first(h)).relu(), x, use_reentrant=False))

    training = Training(Checkpointed(), compiled=True)
    training.step()
    found = training.profiled()
    assert found.recomputed_flops is None
    assert found.model_flops == {}


@pytest.mark.parametrize(("backward", "known"), [(200, True), (204, True), (210, False)])
def test_what_the_compiler_pads_is_no_recomputation(backward, known):
    census = Operations(flops=Counter(float32=100 + backward), forward_flops=Counter(float32=100))
    assert (_recomputed(census) is not None) is known


def test_a_step_that_no_optimizer_takes_has_no_gradients_to_find():
    training = Training(Net())
    assert training.profiled(steps=False) is None


def test_two_profilers_would_disturb_each_other():
    with profile(acc_events=True):
        assert Training(Net()).profiled() is None


def test_a_batch_counts_by_its_own_bytes():
    training = Training(nn.Linear(WIDTH, WIDTH))
    training.step()
    assert training.profiled().peak["other"] == training.batch.nbytes
