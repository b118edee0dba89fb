"""The traced step: every byte in one category, and the training bit for bit as without a trace."""

import copy
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from amp_loops import amp_step
from torch import nn
from torch.nn.modules import module
from torch.utils.checkpoint import checkpoint

from ampsweep.memory_categories import MEMORY_CATEGORIES
from ampsweep.models.gpt import GPT
from ampsweep.observe.host_memory import measure_host_peak
from ampsweep.observe.step import trace_step

BATCH, WIDTH = 32, 64
PARAMETERS, HIDDEN = 4 * 3 * (WIDTH * WIDTH + WIDTH), 4 * BATCH * WIDTH
"""Bytes of the parameters, and of the output of a layer in float32."""
BF16, FP16 = torch.bfloat16, torch.float16


def mlp():
    torch.manual_seed(0)
    first, second, third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)


def traced(model, step, *optimizers):
    with trace_step(model, *optimizers) as trace:
        step()
    return trace.result


class Recipe:
    def __init__(self, optimizer="AdamW", dtype=None, scaler=False, micro_batches=1, max_norm=None, **settings):
        self.model = mlp()
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=1e-3, **settings)
        self.dtype, self.micro_batches, self.max_norm = dtype, micro_batches, max_norm
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaler, init_scale=2.0**8)
        self.generator = torch.Generator().manual_seed(1)

    def step(self):
        drawn = (torch.randn(2, BATCH, WIDTH, generator=self.generator).unbind() for _ in range(self.micro_batches))
        settings = {"num_batches": self.micro_batches, "dtype": self.dtype, "max_norm": self.max_norm}
        return amp_step(self.model, self.optimizer, self.scaler, drawn, **settings)[0]

    def traced_step(self):
        return traced(self.model, self.step, self.optimizer)


PLAIN, CLIPPED, HALVED = {"fused": True}, {"foreach": True, "max_norm": 1.0}, {"fused": True, "dtype": BF16}
RECIPES = {
    "sgd_accumulated": {"optimizer": "SGD", "momentum": 0.9, "micro_batches": 3},
    "adamw": PLAIN,
    "adamw_clipped": CLIPPED,
    "adamw_bf16_accumulated": HALVED | {"micro_batches": 2},
    "adamw_fp16_scaled_clipped": {"fused": True, "dtype": FP16, "scaler": True, "max_norm": 1.0},
    "adamw_foreach_fp16_scaled": {"foreach": True, "dtype": FP16, "scaler": True},
}


@pytest.mark.parametrize("settings", RECIPES.values(), ids=RECIPES)
def test_every_byte_of_a_step_and_no_bit_changed(settings):
    plain, recipe = Recipe(**settings), Recipe(**settings)
    first = recipe.traced_step()
    before = copy.deepcopy(first)
    with measure_host_peak() as grown:
        second = recipe.traced_step()
    for _ in range(2):
        plain.step()
    assert all(map(torch.equal, plain.step(), recipe.step()))
    assert all(map(torch.equal, plain.model.parameters(), recipe.model.parameters()))
    assert first == before, "nothing is watched after the step"
    assert not any(p._post_accumulate_grad_hooks for p in recipe.model.parameters())

    for result in (first, second):
        assert tuple(result.peak) == tuple(result.end_of_forward) == tuple(MEMORY_CATEGORIES)
        assert sum(result.peak.values()) == result.peak_bytes >= sum(result.end_of_forward.values())
    states = [tensor for state in recipe.optimizer.state.values() for tensor in state.values() if tensor is not None]
    assert second.peak["parameters"] == second.end_of_forward["parameters"] == PARAMETERS
    assert second.peak["optimizer_state"] == sum(tensor.nbytes for tensor in states)
    assert second.end_of_forward["gradients"] == (PARAMETERS if recipe.micro_batches > 1 else 0)
    # Operators make scalars of their own; in half precision also packed and widened copies.
    own = 64 if recipe.dtype is None else 4 * HIDDEN
    assert -64 <= second.held_bytes + grown.peak_bytes - second.peak_bytes <= own, "the allocator's peak"
    # Three products forward, and two gradients for each layer but the first, whose input needs none.
    dtype = str(recipe.dtype or torch.float32).removeprefix("torch.")
    assert second.flops == {dtype: recipe.micro_batches * (3 + 5) * 2 * BATCH * WIDTH * WIDTH}
    assert second.num_operators > sum(second.outputs.values()) >= second.outputs[dtype] > 10


def test_where_the_bytes_are():
    clipped, plain, halved = (Recipe(**settings) for settings in (CLIPPED, PLAIN, HALVED))
    for recipe in (clipped, plain, halved):
        recipe.step()
    peak = clipped.traced_step().peak
    assert peak["gradients"] == peak["temporary"] == PARAMETERS, "it copies parameters in its step"
    assert peak["activations"] < HIDDEN
    end = plain.traced_step().end_of_forward
    assert end["activations"] == pytest.approx(2 * HIDDEN + HIDDEN + 4, abs=16), "what backward needs"
    assert (end["other"], end["temporary"]) == (2 * HIDDEN, 0)
    end = halved.traced_step().end_of_forward
    assert end["activations"] == pytest.approx(3 * HIDDEN / 2 + HIDDEN + 4, abs=16), "the loss takes float32"
    assert end["autocast_weights"] == 2 * 2 * WIDTH * WIDTH, "the first layer's input needs no gradient"

    model, x = mlp().to(BF16), torch.randn(BATCH, WIDTH, dtype=BF16)
    pure = traced(model, lambda: model(x).float().square().mean().backward())
    assert pure.peak["autocast_weights"] == pure.end_of_forward["autocast_weights"] == 0
    assert pure.peak["parameters"] == PARAMETERS / 2
    assert set(pure.flops) == {"bfloat16"}


def test_a_gpt_keeps_what_its_sizes_give():
    layers, width, heads, batch, length, vocabulary = 3, 32, 4, 4, 16, 96
    model, tokens = GPT(vocabulary, length, layers, width, heads), torch.randint(vocabulary, (batch, length))
    step = traced(model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward())
    stream = 1 + 2 * layers  # after the embedding, each attention and each feed-forward
    in_blocks = layers * (1 + 3 + 1 + 1 + 4 + 4)  # norm, qkv, attention, norm, and both sides of the GELU
    statistics, log_probabilities = 2 * (2 * layers + 1), vocabulary
    of_token = (stream + in_blocks + 1) * width + statistics + log_probabilities + layers * heads  # the last: softmax
    assert step.end_of_forward["activations"] == pytest.approx(4 * batch * length * of_token, abs=64)


def test_tied_weights_and_buffers_count_once():
    model = nn.Sequential(nn.Embedding(50, 16), nn.BatchNorm1d(8), nn.Linear(16, 50, bias=False))
    model[2].weight = model[0].weight
    optimizer, table = torch.optim.AdamW(model.parameters(), fused=True), torch.randint(50, (100, 8))
    for _ in range(2):
        with trace_step(model, optimizer) as trace:
            tokens = table[torch.arange(4)]
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
    norm = 2 * 4 * 8
    assert trace.result.peak["parameters"] == 4 * 50 * 16 + norm
    assert trace.result.peak["optimizer_state"] == 2 * (4 * 50 * 16 + norm) + 3 * 4
    assert trace.result.end_of_forward["other"] == norm + 8 + table.nbytes + tokens.nbytes, "buffers, foreign tensors"


def test_a_checkpoint_keeps_its_inputs_alone():
    x, blocks = torch.randn(1024, WIDTH), nn.ModuleList(nn.Sequential(mlp(), nn.ReLU(), mlp(), nn.ReLU()) for _ in "12")

    def step():
        first = checkpoint(blocks[0], x, use_reentrant=False)
        checkpoint(blocks[1], first, use_reentrant=False).square().mean().backward()

    found = traced(blocks, step)
    assert found.end_of_forward["activations"] == pytest.approx(2 * x.nbytes, abs=16)
    assert 6 * x.nbytes < found.peak["activations"] < 9 * x.nbytes, "those of one block and what lies between"


def test_what_a_step_leaves_behind_is_kept_and_later_other():
    recipe = Recipe(**PLAIN)
    with trace_step(recipe.model, recipe.optimizer) as trace:
        assert not module._global_forward_hooks, "only sharded parameters need one"
        losses = recipe.step()
    left = {"optimizer_state": 2 * PARAMETERS + 6 * 4, "activations": losses[0].nbytes}
    assert trace.result.kept == dict.fromkeys(MEMORY_CATEGORIES, 0) | left
    del losses
    recipe.micro_batches, held = 3, []
    clean = recipe.traced_step()
    recipe.model[0].register_forward_hook(lambda _, inputs, output: held.append(output))
    leaking = recipe.traced_step()
    assert (sum(clean.kept.values()), leaking.kept["activations"]) == (0, 3 * HIDDEN)
    assert leaking.peak_bytes - clean.peak_bytes >= 2 * HIDDEN, "those of the micro-batches before"

    recipe, seen = Recipe(**PLAIN), [torch.zeros(0, WIDTH)]
    recipe.model.register_forward_pre_hook(lambda _, inputs: seen.append(torch.cat([seen.pop(), inputs[0]])))
    steps = [recipe.traced_step() for _ in range(3)]
    assert [step.kept["other"] for step in steps] == [HIDDEN, 2 * HIDDEN, 3 * HIDDEN]
    ends = [step.end_of_forward["other"] - steps[0].end_of_forward["other"] for step in steps]
    assert ends == [0, HIDDEN, 2 * HIDDEN]


def test_storages_that_change_size_are_followed():
    with trace_step(nn.Linear(8, 8)) as trace:
        x = torch.ones(4, 8)
        x.resize_(1000, 8)
        del x
        torch.ones(2, 8)
    assert trace.result.peak_bytes == 4 * (8 * 8 + 8) + 4 * 1000 * 8


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_step_that_fails_is_traced_until_then(phase):
    def fail(*_):
        raise MemoryError

    model = mlp()
    with suppress(MemoryError), trace_step(model) as trace:
        output = model(torch.randn(BATCH, WIDTH))
        fail() if phase == "forward" else output.register_hook(fail)
        (F.mse_loss(output, torch.randn(BATCH, WIDTH)) * 2).backward()
    found = trace.result.peak if phase == "forward" else trace.result.end_of_forward
    assert found["activations"] == pytest.approx(3 * HIDDEN, abs=64)


def test_a_compiled_model_is_traced_eagerly_and_stays_compiled():
    graphs, recipe = [], Recipe(**PLAIN)
    recipe.model = torch.compile(recipe.model, backend=lambda module, inputs: graphs.append(module) or module.forward)
    assert recipe.traced_step() == Recipe(**PLAIN).traced_step()
    assert not graphs
    for step in (recipe.step, recipe.traced_step, recipe.step):
        step()
    assert len(graphs) == 1


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_within_a_loss_are_of_forward(create_graph):
    def penalized_loss(x, y, *, create_graph=True):
        loss = F.mse_loss(model(x), y)
        gradients = torch.autograd.grad(loss, [*model.parameters()], create_graph=create_graph)
        return loss + sum(gradient.pow(2).sum() for gradient in gradients).sqrt()

    model, (x, y) = mlp(), torch.randn(2, BATCH, WIDTH).unbind()
    step = traced(model, lambda: penalized_loss(x, y).backward())
    end = step.end_of_forward
    # Each layer's output, the penalized gradients, and those of the outputs whose layers' inputs have gradients, too.
    assert end["activations"] == pytest.approx(3 * HIDDEN + PARAMETERS + 2 * HIDDEN, abs=128)
    assert end["gradients"] == end["temporary"] == 0
    assert step.recomputed_flops == {}, "a gradient of a gradient is no recomputation"
    assert step.peak_bytes > sum(end.values())

    with trace_step(model) as trace:
        larger = penalized_loss(*torch.randn(2, 8 * BATCH, WIDTH), create_graph=create_graph).detach()
        loss, begins = F.mse_loss(model(x), y) * larger, trace.ledger.moment
        loss.backward()
        ends = trace.ledger.moment
    assert begins <= trace.ledger.marked_moment < ends
    assert trace.result.end_of_forward["activations"] == pytest.approx(3 * HIDDEN, abs=64)
