"""Watching a training records the magnitudes of its values, lost updates, and the gradients that make it skip steps."""

import copy
import math
from collections import Counter

import pytest
import torch
from assembled import CPU, GPT, MLP, StopAfter, assemble, own, resumed, trained
from torch import nn

from ampsweep.records.numerics import INPUT_LAYER, RunNumerics
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data

WATCH = ("numerics.watch=true",)
EACH = (*WATCH, "numerics.every=1")


def numerics(training):
    return training.instruments.watch.numerics()


def rows_of(training, kind):
    return {row.layer: row for row in numerics(training).magnitudes if row.kind == kind}


def histogram(values):
    return Counter(math.frexp(value)[1] - 1 for value in values.double().flatten().tolist() if value)


@pytest.mark.parametrize(("workload", "precision"), [(GPT, "amp_bf16"), (MLP, "amp_fp16"), (GPT, "pure_bf16")], ids=str)
def test_watching_changes_no_loss_and_no_parameter(workload, precision):
    overrides = (*workload, f"precision={precision}", "trainer.steps=9", "trainer.grad_accum_steps=2")
    plain = trained(*overrides)
    watched = trained(*overrides, *EACH)  # built after that, as both draw from the same generators
    for key in ("train/loss", "train/grad_norm", "val/loss"):
        assert watched.column(key) == plain.column(key)
    assert all(map(torch.equal, watched.parameters(), plain.parameters()))
    assert plain.instruments.watch is None
    assert not plain.trainer.observers
    assert not any(key.startswith("numerics/") for row in plain.rows for key in row)
    model, config = watched.built.model, watched.config
    hooks = [hooks for module in model.modules() for hooks in (module._forward_hooks, module._backward_hooks)]
    hooks += [parameter._post_accumulate_grad_hooks for parameter in model.parameters()]
    assert not any([*hooks, torch.nn.modules.module._global_forward_hooks]), "no hook is left behind"
    measuring = assemble_trainer(config, build(config, CPU, build_data(config, CPU)), CPU)
    assert measuring.instruments.watch is None, "only a run is watched"


def test_watching_takes_the_memory_of_running_statistics():
    images = ("experiment=gan", "data.batch_size=8", "trainer.steps=4")
    mode = ("precision=amp_fp16", "precision.init_scale=16")
    trainings = [trained(*images, *mode, *more) for more in ((), (*WATCH, "numerics.every=3"))]
    plain, watched = (training.instruments.memory() for training in trainings)
    num_bytes = sum(buffer.nbytes for buffer in trainings[0].built.model.buffers())
    assert 0 <= sum(watched.peak.values()) - sum(plain.peak.values()) < num_bytes + 64, "copies of running statistics"
    assert abs(sum(plain.kept.values()) - sum(watched.kept.values())) < 64, "single numbers"
    layers = {row.layer.split(".")[0] for row in numerics(trainings[1]).magnitudes if row.kind == "update"}
    assert layers == {"generator", "discriminator"}


def test_observed_steps_are_neither_traced_nor_timed():
    training = trained(*MLP, *EACH, "trainer.steps=6", "trainer.warmup_steps=2")
    assert training.instruments.proof().num_operators, "a step was traced"
    assert numerics(training).steps == [1, 3, 4, 5, 6]
    assert "perf/step_ms" not in training.instruments.summary()
    assert training.instruments.num_steps_seen == 6
    steps = numerics(trained(*MLP, *WATCH, "trainer.steps=40")).steps
    assert (steps[0], steps[1], steps[-1]) == (1, 5, 40), "the first, the last and some between"
    assert numerics(trained(*MLP, *WATCH, "numerics.every=4", "trainer.steps=10")).steps == [1, 4, 8, 10]


def test_values_of_all_kinds_are_those_of_the_step():
    """Against a step by hand: one batch, three layers, plain SGD."""
    sgd = ("trainer.steps=1", "optimizer=sgd", "optimizer.lr=0.5", "trainer.max_grad_norm=null")
    training = assemble(*MLP, *EACH, *sgd)
    model = copy.deepcopy(training.built.model)
    (turn,) = training.trainer.turns
    outputs, gradients = {}, {}
    names = {module: name for name, module in model.named_modules() if name and not [*module.children()]}

    def keep(module, _, output):
        outputs[names[module]] = output.detach().clone()
        output.register_hook(lambda gradient: gradients.setdefault(names[module], gradient.clone()))

    for module in names:
        module.register_forward_hook(keep)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    batch = training.trainer._prepare(training.built.data.train_batch(0))
    outputs[INPUT_LAYER] = batch[0]
    turn.loss(model, batch).backward()
    training.train()
    after = dict(training.built.model.named_parameters())
    for kind, expected in {
        "activation": outputs,
        "activation_gradient": gradients,
        "gradient": {name: parameter.grad for name, parameter in model.named_parameters()},
        "weight": before,
        "update": {name: after[name].detach() - before[name] for name in before},
    }.items():
        rows = rows_of(training, kind)
        assert {*rows} <= {*expected}
        for name, row in rows.items():
            counts = {row.first_exponent + index: count for index, count in enumerate(row.counts) if count}
            assert counts == histogram(expected[name]), (kind, name)
            assert row.max_abs == expected[name].abs().max()
            assert row.num_elements == expected[name].numel()
    assert [*rows_of(training, "gradient")] == [*before]
    assert [*rows_of(training, "activation")] == [INPUT_LAYER, *rows_of(training, "activation_gradient")]
    assert {*rows_of(training, "activation")} == {*outputs}
    scaled = trained(*MLP, *EACH, *sgd, "precision=amp_fp16")
    for kind in ("gradient", "activation_gradient"):  # without the scale
        expected = {name: row.max_abs for name, row in rows_of(training, kind).items()}
        assert {name: row.max_abs for name, row in rows_of(scaled, kind).items()} == pytest.approx(expected, rel=0.05)
    assert numerics(scaled).scale == 65536


@pytest.mark.parametrize(("precision", "lr"), [("pure_bf16", 1e-3), ("fp32", 1e-3), ("pure_bf16", 10.0)])
def test_the_share_that_an_update_leaves_unchanged_is_exact(precision, lr):
    """Weights of float32 hold any update of that size; of bfloat16 none below half a unit in their last place."""
    sgd = ("optimizer=sgd", f"optimizer.lr={lr}", "trainer.max_grad_norm=null", "optimizer.fused=false")
    training = assemble(*MLP, *EACH, "trainer.steps=1", f"precision={precision}", *sgd)
    before, model = training.parameters(), copy.deepcopy(training.built.model)
    training.trainer.turns[0].loss(model, training.trainer._prepare(training.built.data.train_batch(0))).backward()
    training.train()
    rows = rows_of(training, "update")
    for (name, parameter), old, new in zip(model.named_parameters(), before, training.parameters(), strict=True):
        same = (new == old)[parameter.grad != 0]
        assert rows[name].unchanged_pct == (100 * float(same.sum()) / len(same) if len(same) else None)
    total = training.column("numerics/unchanged_pct")[1]
    assert total > 90 if (precision, lr) == ("pure_bf16", 1e-3) else total < 60


@pytest.mark.parametrize(("optimizer", "clips"), [("sgd", "1.0"), ("adamw", "null")])
def test_gradients_that_make_steps_be_skipped_are_named(optimizer, clips):
    """The gradient of the last layer's output overflows in the third and the sixth batch."""
    amp = ("precision=amp_fp16", "precision.init_scale=1024", "trainer.steps=8")
    training = assemble(*MLP, *WATCH, *amp, f"optimizer={optimizer}", f"trainer.max_grad_norm={clips}")
    linear = [name for name, module in training.built.model.named_modules() if isinstance(module, nn.Linear)]
    overflow = lambda _, inputs, __: (inputs[0] * (math.inf if training.trainer.step in (3, 6) else 1.0),)  # noqa: E731
    training.built.model.get_submodule(linear[2]).register_full_backward_hook(overflow)
    training.train()
    assert training.column("amp/skipped_steps")[8] == 2
    found = numerics(training)
    assert found.nonfinite_gradients == {f"{name}.{part}": 2 for name in linear[:2] for part in ("weight", "bias")}
    first = next(iter(found.nonfinite_gradients))
    assert found.first_nonfinite == {first: 2}
    assert first.startswith(linear[1]), "the layer next to the one whose gradient overflowed"


def test_a_skipped_step_has_no_update_and_numerics_are_kept(tmp_path):
    training = assemble(*MLP, *EACH, "precision=amp_fp16", "precision.init_scale=1e30", "trainer.steps=1")
    training.train()
    assert rows_of(training, "update") == {}
    assert rows_of(training, "gradient")
    found = numerics(training)
    found.write(tmp_path)
    assert RunNumerics.read(tmp_path) == found
    overrides = (*MLP, *EACH, "trainer.steps=6")
    assemble(*overrides, directory=tmp_path).train(StopAfter(3))
    second, _ = resumed(tmp_path, *overrides)  # nothing is left of the first process but the checkpoint
    second.train()
    assert numerics(second).steps == [1, 3, 4, 6], "each process traces its second step"


class Tagger(nn.Module):
    """An LSTM, whose output is a tuple, called twice a step."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, inputs):
        _, state = self.lstm(inputs.flatten(1).unflatten(1, (-1, 8)))
        outputs, _ = self.lstm(inputs.flatten(1).unflatten(1, (-1, 8)), state)
        return self.head(outputs[:, -1])


def in_place():
    """An activation that works in place, and a container that returns the output of its last module."""
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(inplace=True)))


def test_each_activation_is_counted_once():
    training = trained(*own(__name__, "Tagger"), *EACH, "trainer.steps=1")
    rows = rows_of(training, "activation")
    assert [*rows] == [INPUT_LAYER, "lstm", "head"], "a module called twice is one layer"
    assert (rows["lstm"].num_steps, rows["lstm"].num_elements) == (1, 2 * 16 * 6 * (8 + 1 + 1))
    assert {*rows_of(training, "activation_gradient")} == {"lstm", "head"}
    rows = rows_of(trained(*own(__name__, "in_place"), *EACH, "trainer.steps=1"), "activation")
    assert [*rows] == [INPUT_LAYER, "0.0", "0.1", "0.2"], "an output passed on is no activation of its own"
    assert rows["0.2"].num_zeros > 0 == rows["0.1"].num_zeros
    recomputes = "trainer.activation_checkpointing=true"
    plain, again = (trained(*GPT, *EACH, "trainer.steps=1", *more) for more in ((), (recomputes,)))
    assert rows_of(plain, "activation") == rows_of(again, "activation")
    assert {*rows_of(plain, "activation_gradient")} == {*rows_of(again, "activation_gradient")}
