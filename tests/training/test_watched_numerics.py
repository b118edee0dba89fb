"""Watching a training tells the magnitudes of its values, what its updates lose and what makes its steps be skipped."""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from assembled import CPU, GPT, MLP, StopAfter, assemble, resumed
from torch import nn

from ampsweep.config.compose import compose_one
from ampsweep.record.numerics import INPUT_LAYER, RunNumerics
from ampsweep.tasks.classification import Classification

WATCH = ("numerics.watch=true",)
EACH = (*WATCH, "numerics.every=1")


def rows_of(training, kind):
    return {one.layer: one for one in training.trainer.instruments.watch.numerics().magnitudes if one.kind == kind}


def histogram(values):
    counts = {}
    for value in values.double().flatten().tolist():
        if value:
            exponent = math.frexp(value)[1] - 1
            counts[exponent] = counts.get(exponent, 0) + 1
    return counts


def counts_of(one):
    return {one.first_exponent + index: count for index, count in enumerate(one.counts) if count}


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "amp_fp16", "pure_bf16"])
@pytest.mark.parametrize("workload", [MLP, GPT], ids=["mlp", "gpt"])
def test_watching_changes_no_loss_and_no_parameter(workload, precision):
    overrides = (*workload, f"precision={precision}", "trainer.steps=9", "trainer.grad_accum_steps=2")
    plain = assemble(*overrides)
    plain.train()
    watched = assemble(*overrides, *EACH)  # built after that, as both draw from the same generators
    watched.train()
    assert watched.column("train/loss") == plain.column("train/loss")
    assert watched.column("train/grad_norm") == plain.column("train/grad_norm")
    assert watched.column("val/loss") == plain.column("val/loss")
    assert all(map(torch.equal, watched.parameters(), plain.parameters()))


def test_without_watching_nothing_of_it_is_there():
    training = assemble(*MLP, "trainer.steps=3")
    training.train()
    assert training.trainer.instruments.watch is None
    assert not training.trainer.observers
    assert not any(key.startswith("numerics/") for row in training.rows for key in row)


def test_only_a_run_is_watched():
    """What measures something else with the same config has neither hooks nor a guard."""
    from ampsweep.training.assembly import assemble_trainer
    from ampsweep.training.components.built import build, build_data

    config = compose_one([*MLP, *WATCH, "device=cpu"])
    assert assemble_trainer(config, build(config, CPU, build_data(config, CPU)), CPU).instruments.watch is None


@pytest.mark.parametrize("precision", ["fp32", "amp_fp16"])
def test_watching_takes_the_memory_of_running_statistics(precision):
    images = ("model=resnet18", "data=synthetic_images", "data.image_size=8", "data.batch_size=2", "trainer.steps=4")
    memory = []
    for more in ((), (*WATCH, "numerics.every=3")):
        training = assemble(*images, f"precision={precision}", *more)
        training.train()
        memory.append(training.trainer.instruments.memory())
    plain, watched = memory
    num_bytes = sum(buffer.nbytes for buffer in training.built.model.buffers())
    assert 0 <= sum(watched.peak.values()) - sum(plain.peak.values()) < num_bytes + 64, "copies of running statistics"
    assert abs(sum(plain.kept.values()) - sum(watched.kept.values())) < 64, "single numbers"


def test_the_first_step_and_the_last_are_looked_into():
    training = assemble(*MLP, *WATCH, "trainer.steps=40")
    training.train()
    steps = training.trainer.instruments.watch.numerics().steps
    assert (steps[0], steps[1], steps[-1]) == (1, 5, 40)


def test_steps_are_looked_into_at_an_interval():
    training = assemble(*MLP, *WATCH, "numerics.every=4", "trainer.steps=10")
    training.train()
    assert training.trainer.instruments.watch.numerics().steps == [1, 4, 8, 10]


def test_the_traced_step_is_not_looked_into():
    training = assemble(*MLP, *EACH, "trainer.steps=6")
    training.train()
    assert training.trainer.instruments.proof().num_operators, "a step was traced"
    assert training.trainer.instruments.watch.numerics().steps == [1, 3, 4, 5, 6]


def test_looked_steps_are_in_no_figure_of_time():
    training = assemble(*MLP, *EACH, "trainer.steps=12", "trainer.warmup_steps=2")
    training.train()
    assert "perf/step_ms" not in training.trainer.instruments.summary()
    assert training.trainer.instruments.num_steps_seen == 12


def test_values_of_all_kinds_are_those_of_the_step():
    """Against a step by hand: one batch, three layers, plain SGD."""
    training = assemble(
        *MLP, *EACH, "trainer.steps=1", "optimizer=sgd", "optimizer.lr=0.5", "trainer.max_grad_norm=null"
    )
    model = copy.deepcopy(training.built.model)
    (turn,) = training.trainer.turns
    outputs, gradients = {}, {}
    for name, module in model.named_modules():
        if name and not [*module.children()]:
            module.register_forward_hook(lambda _, __, output, name=name: keep(name, output))

    def keep(name, output):
        outputs[name] = output.detach().clone()
        output.register_hook(lambda gradient: gradients.setdefault(name, gradient.clone()))

    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    batch = training.trainer._prepare(training.built.data.train_batch(0))
    outputs[INPUT_LAYER] = batch[0]
    turn.loss(model, batch).backward()
    training.train()
    after = dict(training.built.model.named_parameters())
    for kind, expected in {
        "activation": outputs,
        "activation_gradient": gradients,
        "gradient": {name: one.grad for name, one in model.named_parameters()},
        "weight": before,
        "update": {name: after[name].detach() - before[name] for name in before},
    }.items():
        found = rows_of(training, kind)
        assert {*found} <= {*expected}
        for name, one in found.items():
            assert counts_of(one) == histogram(expected[name]), (kind, name)
            assert one.max_abs == expected[name].abs().max()
            assert one.num_elements == expected[name].numel()
    assert [*rows_of(training, "gradient")] == [*before]
    assert [*rows_of(training, "activation")] == [INPUT_LAYER, *rows_of(training, "activation_gradient")]
    assert {*rows_of(training, "activation")} == {*outputs}


def test_magnitudes_of_gradients_are_without_the_scale():
    scaled, plain = (
        assemble(*MLP, *EACH, "trainer.steps=1", f"precision={mode}", "optimizer=sgd") for mode in ("amp_fp16", "fp32")
    )
    for training in (scaled, plain):
        training.train()
    for kind in ("gradient", "activation_gradient"):
        mine, theirs = rows_of(scaled, kind), rows_of(plain, kind)
        assert [*mine] == [*theirs]
        for name, one in mine.items():
            assert one.max_abs == pytest.approx(theirs[name].max_abs, rel=0.05)
    assert scaled.trainer.instruments.watch.numerics().scale == 65536


@pytest.mark.parametrize(("precision", "lr"), [("pure_bf16", 1e-3), ("fp32", 1e-3), ("pure_bf16", 10.0)])
def test_the_share_that_an_update_leaves_unchanged_is_exact(precision, lr):
    """Weights of float32 hold any update of that size; of bfloat16 none below half a unit in their last place."""
    training = assemble(
        *MLP, *EACH, "trainer.steps=1", f"precision={precision}", "optimizer=sgd", f"optimizer.lr={lr}",
        "trainer.max_grad_norm=null", "optimizer.fused=false",
    )  # fmt: skip
    parameters = dict(training.built.model.named_parameters())
    before = {name: one.detach().clone() for name, one in parameters.items()}
    model = copy.deepcopy(training.built.model)
    training.trainer.turns[0].loss(model, training.trainer._prepare(training.built.data.train_batch(0))).backward()
    training.train()
    for name, one in model.named_parameters():
        has_gradient = one.grad != 0
        same = (parameters[name] == before[name]) & has_gradient
        expected = None if not has_gradient.any() else 100 * float(same.sum()) / float(has_gradient.sum())
        assert rows_of(training, "update")[name].unchanged_pct == expected
    total = training.column("numerics/unchanged_pct")[1]
    assert total > 90 if (precision, lr) == ("pure_bf16", 1e-3) else total < 60


@dataclass
class Overflowing(Classification):
    """The gradient of one layer's output overflows in some batches."""

    batches: tuple = (2, 5)
    layer: int = 2

    def __post_init__(self):
        super().__init__()
        self.seen = 0

    def loss(self, model, batch):
        is_bad, self.seen = self.seen in self.batches, self.seen + 1
        module = [one for one in model.modules() if isinstance(one, nn.Linear)][self.layer]
        handle = module.register_full_backward_hook(lambda _, inputs, __: (inputs[0] * math.inf,)) if is_bad else None
        loss = super().loss(model, batch)
        if handle is not None:
            handle.remove()  # what it has put into the graph stays
        return loss


@pytest.mark.parametrize("clips", ["1.0", "null"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_gradients_that_make_steps_be_skipped_are_named(optimizer, clips):
    task = Overflowing()
    training = assemble(
        *MLP, *WATCH, "precision=amp_fp16", "precision.init_scale=1024", "trainer.steps=8", f"optimizer={optimizer}",
        f"trainer.max_grad_norm={clips}", task=task,
    )  # fmt: skip
    linear = [name for name, one in training.built.model.named_modules() if isinstance(one, nn.Linear)]
    assert len(linear) > 2
    training.train()
    assert training.column("amp/skipped_steps")[8] == 2
    numerics = training.trainer.instruments.watch.numerics()
    below = [f"{name}.{part}" for name in linear[:2] for part in ("weight", "bias")]
    assert {*numerics.nonfinite_gradients} == {*below}
    assert {*numerics.nonfinite_gradients.values()} == {2}
    (first,) = numerics.first_nonfinite
    assert numerics.first_nonfinite == {first: 2}
    assert first.startswith(linear[1]), "the layer next to the one whose gradient overflowed"
    assert next(iter(numerics.nonfinite_gradients)) == first


def test_a_skipped_step_has_no_update():
    training = assemble(*MLP, *EACH, "precision=amp_fp16", "precision.init_scale=1e30", "trainer.steps=1")
    training.train()
    assert rows_of(training, "update") == {}
    assert rows_of(training, "gradient")


def test_numerics_are_read_as_they_were_written(tmp_path):
    training = assemble(*MLP, *EACH, "precision=amp_fp16", "trainer.steps=4")
    training.train()
    numerics = training.trainer.instruments.watch.numerics()
    numerics.write(tmp_path)
    assert RunNumerics.read(tmp_path) == numerics


def test_a_resumed_training_goes_on_with_its_numerics(tmp_path):
    overrides = (*MLP, *EACH, "trainer.steps=6")
    whole, first = assemble(*overrides), assemble(*overrides, directory=tmp_path)
    whole.train()
    first.train(StopAfter(3))
    second, _ = resumed(tmp_path, *overrides)  # of the first process nothing but the checkpoint is left
    second.train()
    assert second.trainer.instruments.watch.numerics().steps == [1, 3, 4, 6]  # each process traces its second step
    assert second.column("train/loss") == {step: loss for step, loss in whole.column("train/loss").items() if step > 3}


class Tagger(nn.Module):
    """An LSTM, whose output is a tuple, called twice a step."""

    def __init__(self, in_features=64, num_classes=10):
        super().__init__()
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, num_classes)

    def forward(self, inputs):
        _, state = self.lstm(inputs.flatten(1).unflatten(1, (-1, 8)))
        outputs, _ = self.lstm(inputs.flatten(1).unflatten(1, (-1, 8)), state)
        return self.head(outputs[:, -1])


class InPlace(nn.Module):
    """An activation that works in place, and a container that returns what its last part has returned."""

    def __init__(self, in_features=64, num_classes=10):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(inplace=True))

    def forward(self, inputs):
        return {"logits": self.body(inputs)}["logits"]


def custom(name, **extra):
    return ("model=custom", f"model._target_={__name__}.{name}", "data=digits", "data.batch_size=16", *extra)


def test_a_module_called_twice_is_one_layer():
    training = assemble(*custom("Tagger"), *EACH, "trainer.steps=1")
    training.train()
    found = rows_of(training, "activation")
    assert [*found] == [INPUT_LAYER, "lstm", "head"]
    assert found["lstm"].num_steps == 1
    assert found["lstm"].num_elements == 2 * 16 * 6 * (8 + 1 + 1)
    assert {*rows_of(training, "activation_gradient")} == {"lstm", "head"}


def test_what_is_passed_on_is_no_activation_of_its_own():
    training = assemble(*custom("InPlace"), *EACH, "trainer.steps=1")
    training.train()
    found = rows_of(training, "activation")
    assert [*found] == [INPUT_LAYER, "body.0", "body.1", "body.2"]
    assert found["body.2"].num_zeros > 0 == found["body.1"].num_zeros


def test_activation_checkpointing_counts_each_activation_once():
    trainings = []
    for one in ("false", "true"):
        training = assemble(*GPT, *EACH, "trainer.steps=1", f"trainer.activation_checkpointing={one}")
        training.train()
        trainings.append(training)
    plain, again = trainings
    assert rows_of(plain, "activation") == rows_of(again, "activation")
    assert {*rows_of(plain, "activation_gradient")} == {*rows_of(again, "activation_gradient")}


def test_the_layers_of_a_gan_are_all_seen():
    training = assemble("experiment=gan", *EACH, "trainer.steps=3", "data.batch_size=8")
    training.train()
    layers = {one.split(".")[0] for one in rows_of(training, "update")}
    assert layers == {"generator", "discriminator"}


def test_of_a_compiled_model_the_parameters_are_seen(monkeypatch):
    compile_model = lambda model, task: model.compile(backend="aot_eager")  # noqa: E731  inductor warns, and is slow
    monkeypatch.setattr("ampsweep.training.components.built._compile", compile_model)
    training = assemble(*MLP, *EACH, "trainer.steps=4", "trainer.compile=true")
    training.train()
    kinds = {one.kind for one in training.trainer.instruments.watch.numerics().magnitudes}
    assert kinds == {"gradient", "weight", "update"}


def test_no_hook_is_left_behind():
    training = assemble(*GPT, *EACH, "trainer.steps=3")
    training.train()
    assert not any(module._forward_hooks or module._backward_hooks for module in training.built.model.modules())
    assert not torch.nn.modules.module._global_forward_hooks
    assert not any(one._post_accumulate_grad_hooks for one in training.built.model.parameters())
