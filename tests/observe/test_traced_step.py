"""The traced step: every byte in one category, and not a bit of the training changed."""

import copy
import json
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from amp_loops import amp_step
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from ampsweep.memory_categories import MEMORY_CATEGORIES
from ampsweep.observe.step import trace_step

BATCH, WIDTH = 32, 64
NUM_PARAMETERS = 3 * (WIDTH * WIDTH + WIDTH)
ADAMW = {"lr": 1e-3, "weight_decay": 0.1}


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
    )


class Recipe:
    """A training step with its parts to choose."""

    def __init__(self, model, optimizer, dtype=None, scaler=False, micro_batches=1, max_norm=None):
        self.model, self.optimizer = model, optimizer
        self.dtype, self.micro_batches, self.max_norm = dtype, micro_batches, max_norm
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaler, init_scale=2.0**8)
        self.generator = torch.Generator().manual_seed(1)

    def step(self):
        drawn = (torch.randn(2, BATCH, WIDTH, generator=self.generator).unbind() for _ in range(self.micro_batches))
        settings = {"num_batches": self.micro_batches, "dtype": self.dtype, "max_norm": self.max_norm}
        losses, _ = amp_step(self.model, self.optimizer, self.scaler, drawn, **settings)
        return losses

    def traced_step(self):
        with trace_step(self.model, self.optimizer) as trace:
            self.step()
        return trace.result


def adamw(model, **settings):
    return torch.optim.AdamW(model.parameters(), **ADAMW, **settings)


RECIPES = {
    "sgd": lambda m: Recipe(m, torch.optim.SGD(m.parameters(), lr=0.1)),
    "sgd_momentum_accumulated": lambda m: Recipe(
        m, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), micro_batches=3
    ),
    "adamw_foreach_clipped": lambda m: Recipe(m, adamw(m, foreach=True), max_norm=1.0),
    "adamw_fused": lambda m: Recipe(m, adamw(m, fused=True)),
    "adamw_fused_bf16": lambda m: Recipe(m, adamw(m, fused=True), torch.bfloat16, micro_batches=2),
    "adamw_fused_fp16_scaled": lambda m: Recipe(m, adamw(m, fused=True), torch.float16, scaler=True, max_norm=1.0),
    "adamw_foreach_fp16_scaled": lambda m: Recipe(m, adamw(m, foreach=True), torch.float16, scaler=True),
}


@pytest.fixture(params=RECIPES)
def make_recipe(request):
    return RECIPES[request.param]


def test_tracing_changes_no_bit_of_the_training(make_recipe):
    plain, traced = make_recipe(mlp()), make_recipe(mlp())
    for step in range(4):
        losses = plain.step()
        if step == 1:
            with trace_step(traced.model, traced.optimizer):
                traced_losses = traced.step()
        else:
            traced_losses = traced.step()
        assert all(map(torch.equal, losses, traced_losses))
    assert all(map(torch.equal, plain.model.parameters(), traced.model.parameters()))


def test_parameters_gradients_and_state_are_counted_to_the_byte(make_recipe):
    recipe = make_recipe(mlp())
    recipe.step()
    traced = recipe.traced_step()
    state = sum(
        tensor.nbytes
        for state in recipe.optimizer.state.values()
        for tensor in state.values()
        if isinstance(tensor, torch.Tensor)
    )
    assert traced.peak["parameters"] == traced.end_of_forward["parameters"] == 4 * NUM_PARAMETERS
    assert traced.peak["optimizer_state"] == state
    accumulated = 4 * NUM_PARAMETERS if recipe.micro_batches > 1 else 0
    assert traced.end_of_forward["gradients"] == accumulated


def test_an_optimizer_that_copies_parameters_peaks_in_its_step():
    recipe = RECIPES["adamw_foreach_clipped"](mlp())
    recipe.step()
    peak = recipe.traced_step().peak
    assert peak["gradients"] == peak["temporary"] == 4 * NUM_PARAMETERS
    assert peak["activations"] < 4 * BATCH * WIDTH


def test_categories_add_up_to_the_peak(make_recipe):
    recipe = make_recipe(mlp())
    for _ in range(2):
        traced = recipe.traced_step()
        assert tuple(traced.peak) == tuple(traced.end_of_forward) == tuple(MEMORY_CATEGORIES)
        assert sum(traced.peak.values()) == traced.peak_bytes
        assert sum(traced.end_of_forward.values()) <= traced.peak_bytes


def test_the_peak_is_that_of_the_allocator(make_recipe, tmp_path):
    recipe = make_recipe(mlp())
    recipe.step()
    traced = recipe.traced_step()
    held_before = 4 * NUM_PARAMETERS + traced.peak["optimizer_state"]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
        recipe.step()
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    memory = sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"])
    before = memory[0]["args"]["Total Allocated"] - memory[0]["args"]["Bytes"]  # by earlier profilers of this process
    peak = held_before + max(e["args"]["Total Allocated"] for e in memory) - before
    # Operators make scalars of their own; in half precision they also make packed and widened copies.
    own = 64 if recipe.dtype is None else 4 * (4 * BATCH * WIDTH)
    assert traced.peak_bytes - 64 <= peak <= traced.peak_bytes + own


def test_activations_are_what_backward_needs():
    recipe = RECIPES["adamw_fused"](mlp())
    recipe.step()
    traced = recipe.traced_step()
    hidden, output, loss = 2 * 4 * BATCH * WIDTH, 4 * BATCH * WIDTH, 4
    batch = 2 * 4 * BATCH * WIDTH
    assert traced.end_of_forward["activations"] == pytest.approx(hidden + output + loss, abs=16)
    assert traced.end_of_forward["other"] == batch
    assert traced.end_of_forward["temporary"] == 0


def test_autocast_halves_activations_and_copies_weights():
    recipe = RECIPES["adamw_fused_bf16"](mlp())
    recipe.step()
    end = recipe.traced_step().end_of_forward
    input_and_hidden, output_for_loss, loss = 3 * 2 * BATCH * WIDTH, 4 * BATCH * WIDTH, 4
    assert end["activations"] == pytest.approx(input_and_hidden + output_for_loss + loss, abs=16)
    assert end["autocast_weights"] == 2 * 2 * WIDTH * WIDTH  # the first layer's input needs no gradient


def test_without_autocast_there_are_no_copies_of_weights():
    model = mlp().to(torch.bfloat16)
    optimizer = adamw(model, fused=True)
    x = torch.randn(BATCH, WIDTH, dtype=torch.bfloat16)
    with trace_step(model, optimizer) as trace:
        model(x).float().square().mean().backward()
        optimizer.step()
    traced = trace.result
    assert traced.peak["autocast_weights"] == traced.end_of_forward["autocast_weights"] == 0
    assert traced.peak["parameters"] == 2 * NUM_PARAMETERS
    assert set(traced.flops) == {"bfloat16"}


def test_a_census_tells_the_dtypes_that_ran():
    for name, dtype in (("sgd", "float32"), ("adamw_fused_bf16", "bfloat16"), ("adamw_fused_fp16_scaled", "float16")):
        recipe = RECIPES[name](mlp())
        traced = recipe.traced_step()
        # Two gradients for each layer but the first, whose input needs none.
        assert traced.flops == {dtype: recipe.micro_batches * (3 + 5 - 3 + 3) * 2 * BATCH * WIDTH * WIDTH}
        assert traced.outputs[dtype] > 10
        assert traced.num_operators > sum(traced.outputs.values())


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens))

    model = Tied()
    optimizer = adamw(model, fused=True)
    tokens = torch.randint(50, (4, 8))
    for _ in range(2):
        with trace_step(model, optimizer) as trace:
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
    assert trace.result.peak["parameters"] == 4 * 50 * 16
    assert trace.result.peak["optimizer_state"] == 2 * 4 * 50 * 16 + 4


def test_buffers_and_what_others_hold_are_other():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    table = torch.randn(100, 8)
    with trace_step(model) as trace:
        model(table[torch.arange(4)]).sum().backward()
    buffers = 2 * 4 * 8 + 8
    assert trace.result.end_of_forward["other"] == buffers + table.nbytes + table[:4].nbytes


def test_a_checkpoint_recomputes_activations():
    class Blocks(nn.Module):
        def __init__(self, use_checkpoint):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(mlp(), nn.ReLU(), mlp(), nn.ReLU()) for _ in range(2))
            self.use_checkpoint = use_checkpoint

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.use_checkpoint else block(x)
            return x

    results = {}
    x = torch.randn(1024, WIDTH)
    for use_checkpoint in (False, True):
        model = Blocks(use_checkpoint)
        with trace_step(model) as trace:
            model(x).square().mean().backward()
        results[use_checkpoint] = trace.result
    layer = x.nbytes
    assert results[False].end_of_forward["activations"] == pytest.approx(2 * 6 * layer, abs=16)
    assert results[True].end_of_forward["activations"] == pytest.approx(2 * layer, abs=16)
    assert 6 * layer < results[True].peak["activations"] < 9 * layer  # those of one block and what lies between
    assert results[True].peak_bytes < results[False].peak_bytes
    assert results[True].flops["float32"] > results[False].flops["float32"]
    assert results[True].model_flops == results[False].model_flops == results[False].flops


@pytest.mark.parametrize(("use_reentrant", "num_layers_again"), [(True, 3), (False, 2)])
def test_what_a_checkpoint_does_again_is_told_apart(use_reentrant, num_layers_again):
    model = mlp()
    x = torch.randn(BATCH, WIDTH, requires_grad=True)
    with trace_step(model) as trace:
        checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
    layer = 2 * BATCH * WIDTH * WIDTH
    # Without reentrance it stops where the last layer's input is there again.
    assert trace.result.recomputed_flops == {"float32": num_layers_again * layer}
    assert trace.result.model_flops == {"float32": 3 * 3 * layer}


def test_a_gradient_of_a_gradient_is_no_recomputation():
    model = nn.Linear(WIDTH, WIDTH)
    x = torch.randn(BATCH, WIDTH, requires_grad=True)
    with trace_step(model) as trace:
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()
    assert trace.result.recomputed_flops == {}
    assert trace.result.flops["float32"] > 3 * 2 * BATCH * WIDTH * WIDTH


def test_a_step_leaves_nothing_behind_but_what_it_returns():
    recipe = RECIPES["adamw_fused"](mlp())
    with trace_step(recipe.model, recipe.optimizer) as trace:
        losses = recipe.step()
    left = {"optimizer_state": 2 * 4 * NUM_PARAMETERS + 6 * 4, "activations": losses[0].nbytes}
    assert trace.result.kept == dict.fromkeys(MEMORY_CATEGORIES, 0) | left
    assert sum(recipe.traced_step().kept.values()) == 0


class Leaking(nn.Module):
    """Keeps the output of its first layer, every time."""

    def __init__(self):
        super().__init__()
        self.first, *rest = mlp()
        self.rest = nn.Sequential(*rest)
        self.kept = []

    def forward(self, x):
        hidden = self.first(x)
        self.kept.append(hidden)
        return self.rest(hidden)


def test_a_tensor_held_alive_is_seen_in_one_step():
    clean, leaking = (
        Recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), micro_batches=3).traced_step()
        for model in (mlp(), Leaking())
    )
    hidden = 4 * BATCH * WIDTH
    assert sum(clean.kept.values()) == 0
    assert leaking.kept["activations"] == 3 * hidden
    assert leaking.peak_bytes - clean.peak_bytes >= 2 * hidden  # those of the micro-batches before


def test_what_an_earlier_step_left_and_this_one_uses_is_other():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = nn.Linear(WIDTH, WIDTH), torch.zeros(0, WIDTH)

        def forward(self, x):
            self.seen = torch.cat([self.seen, x.detach()])
            return self.layer(x) + self.seen.mean()

    model = Memory()
    recipe = Recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))
    steps = [recipe.traced_step() for _ in range(3)]
    batch = 4 * BATCH * WIDTH
    assert [step.kept["other"] for step in steps] == [batch, 2 * batch, 3 * batch]
    assert [step.end_of_forward["other"] - steps[0].end_of_forward["other"] for step in steps] == [0, batch, 2 * batch]


def test_storages_that_change_size_are_followed():
    model = nn.Linear(8, 8)
    with trace_step(model) as trace:
        x = torch.ones(4, 8)
        x.resize_(1000, 8)
        del x
        model(torch.ones(2, 8)).sum().backward()
    assert trace.result.peak_bytes == 4 * (8 * 8 + 8) + 4 * 1000 * 8


def test_a_step_that_fails_is_traced_until_it_does():
    model = mlp()

    def fail_in_forward():
        with trace_step(model) as trace:
            traces.append(trace)
            model(torch.randn(BATCH, WIDTH))
            raise MemoryError

    traces = []
    with pytest.raises(MemoryError):
        fail_in_forward()
    assert traces[0].result.peak["activations"] >= 3 * 4 * BATCH * WIDTH


def test_nothing_is_watched_after_the_step():
    model = mlp()
    optimizer = adamw(model)
    recipe = Recipe(model, optimizer)
    with trace_step(model, optimizer) as trace:
        recipe.step()
    before = copy.deepcopy(trace.result)
    recipe.step()
    assert trace.result == before
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_compiled_model_is_traced_eagerly_and_stays_compiled():
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    eager, model = mlp(), mlp()
    compiled = torch.compile(model, backend=backend)
    expected = Recipe(eager, adamw(eager, fused=True)).traced_step()
    recipe = Recipe(compiled, adamw(model, fused=True))
    first = recipe.traced_step()
    assert not graphs
    recipe.step()
    recipe.traced_step()
    recipe.step()
    assert len(graphs) == 1
    assert first == expected


def penalized_loss(model, x, y, *, create_graph=True):
    loss = F.mse_loss(model(x), y)
    gradients = torch.autograd.grad(loss, [*model.parameters()], create_graph=create_graph)
    return loss + sum(gradient.pow(2).sum() for gradient in gradients).sqrt()


def test_gradients_that_are_penalized_are_activations():
    model, (x, y) = mlp(), torch.randn(2, BATCH, WIDTH).unbind()
    optimizer = adamw(model, fused=True)
    with trace_step(model, optimizer) as trace:
        penalized_loss(model, x, y).backward()
        optimizer.step()
    end, layer = trace.result.end_of_forward, 4 * BATCH * WIDTH
    # Each layer's output, the penalized gradients, and those of the outputs whose layers' inputs have gradients, too.
    assert end["activations"] == pytest.approx(3 * layer + 4 * NUM_PARAMETERS + 2 * layer, abs=128)
    assert end["gradients"] == end["temporary"] == 0
    assert trace.result.peak_bytes > sum(end.values())


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_pass_within_the_loss_ends_no_forward(create_graph):
    model, (x, y) = mlp(), torch.randn(2, BATCH, WIDTH).unbind()
    moments = []
    with trace_step(model, adamw(model, fused=True)) as trace:
        larger = penalized_loss(model, *torch.randn(2, 8 * BATCH, WIDTH), create_graph=create_graph).detach()
        loss = F.mse_loss(model(x), y) * larger
        moments.append(trace.ledger.moment)
        loss.backward()
        moments.append(trace.ledger.moment)
    assert moments[0] <= trace.ledger.marked_moment < moments[1]
    assert trace.result.end_of_forward["activations"] == pytest.approx(3 * 4 * BATCH * WIDTH, abs=64)


def test_a_step_that_fails_in_backward_ended_its_forward():
    model, (x, y) = mlp(), torch.randn(2, BATCH, WIDTH).unbind()

    def fails(gradient):
        raise RuntimeError

    with suppress(RuntimeError), trace_step(model, adamw(model, fused=True)) as trace:
        output = model(x)
        output.register_hook(fails)
        (F.mse_loss(output, y) * 2).backward()
    assert trace.result.end_of_forward["activations"] == pytest.approx(3 * 4 * BATCH * WIDTH, abs=64)
