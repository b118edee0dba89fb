"""One step from the inside: what is called when, under which context, and what must not matter."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from assembled import GPT, MLP, assemble

from ampsweep.observe.step import trace_step

ACCUMULATE = ("trainer.grad_accum_steps=3",)
REGRESSION = ("model=mlp_recipe", "data.in_features=32", "data.out_features=64", "data.batch_size=16")
OVERFLOWS = ("precision=amp_fp16", "precision.init_scale=1099511627776.0", "precision.growth_interval=4")


class Watched:
    """A precision that notes what the loop asks of it."""

    def __init__(self, precision):
        self._precision = precision
        self.calls = []

    def __getattr__(self, name):
        value = getattr(self._precision, name)
        if name not in ("backward", "unscale_", "step", "update"):
            return value

        def call(*arguments, **more):
            self.calls.append(name)
            return value(*arguments, **more)

        return call


class WatchedAutocast:
    """The same for its autocast."""

    def __init__(self, autocast, calls):
        self.autocast, self.calls = autocast, calls

    def __enter__(self):
        self.calls.append("autocast")
        self.autocast.__enter__()

    def __exit__(self, *error):
        self.autocast.__exit__(*error)


def first_step(*overrides):
    training = assemble(*MLP, "trainer.steps=1", *overrides)
    trainer, watched = training.trainer, Watched(training.built.precision)
    trainer.precision, trainer._autocast = watched, WatchedAutocast(trainer._autocast, watched.calls)
    trainer._backward = trainer.parallel.backward(watched)
    trainer.train_step()
    return watched.calls


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16"])
def test_a_step_calls_the_same_in_the_same_order_in_every_mode(mode):
    calls = first_step(f"precision={mode}", "trainer.max_grad_norm=1")
    assert calls == ["autocast", "backward", "unscale_", "step", "update"]


def test_after_all_micro_batches_the_optimizer_steps_once():
    calls = first_step("precision=amp_fp16", *ACCUMULATE, "trainer.max_grad_norm=1")
    assert calls == ["autocast", "backward"] * 3 + ["unscale_", "step", "update"]


@pytest.mark.parametrize("max_norm", ["null", "1.0"])
def test_clipping_by_value_unscales_once_too(max_norm):
    limits = (f"trainer.max_grad_norm={max_norm}", "trainer.max_grad_value=0.1")
    calls = first_step("precision=amp_fp16", *ACCUMULATE, *limits)
    assert calls == ["autocast", "backward"] * 3 + ["unscale_", "step", "update"]


def test_without_clipping_the_scaler_unscales_by_itself():
    calls = first_step("precision=amp_fp16")
    assert calls == ["autocast", "backward", "step", "update"]


@pytest.mark.parametrize("mode", ["amp_bf16", "amp_fp16"])
def test_forward_and_loss_are_under_autocast_and_backward_is_not(mode):
    training = assemble(*MLP, f"precision={mode}", "trainer.steps=1")
    model, loss = training.built.model, training.built.task.loss
    seen = {"forward": [], "loss": [], "backward": []}
    model.register_forward_hook(lambda *_: seen["forward"].append(torch.is_autocast_enabled("cpu")))
    next(model.parameters()).register_hook(lambda _: seen["backward"].append(torch.is_autocast_enabled("cpu")))

    def noting(model, batch):
        value = loss(model, batch)
        seen["loss"].append(torch.is_autocast_enabled("cpu"))
        return value

    training.use_loss(noting)
    training.trainer.train_step()
    assert seen == {"forward": [True], "loss": [True], "backward": [False]}


def test_the_scale_changes_between_effective_batches_only():
    training = assemble(*MLP, *OVERFLOWS, *ACCUMULATE, "trainer.steps=30")
    precision = training.trainer.precision
    scales, loss = [], training.built.task.loss

    def noting(model, batch):
        scales.append(precision.scale().item())
        return loss(model, batch)

    training.use_loss(noting)
    training.train()
    steps = [scales[first : first + 3] for first in range(0, len(scales), 3)]
    assert all(len(set(of_a_step)) == 1 for of_a_step in steps)
    assert [of_a_step[0] for of_a_step in steps] == list(training.column("amp/scale").values())
    assert {after[0] / before[0] for before, after in pairwise(steps)} == {0.5, 1.0, 2.0}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("fused", ["true", "false"])
def test_overflowing_steps_change_no_parameter_and_are_counted(optimizer, fused):
    chosen = (f"optimizer={optimizer}", f"optimizer.fused={fused}", "trainer.steps=40", "scheduler=cosine")
    training = assemble(*MLP, *OVERFLOWS, *chosen)
    trainer = training.trainer
    with trainer.instruments, trainer.precision.flags():
        num_skipped = num_applied = 0
        for _ in range(40):
            before, scale = training.parameters(), trainer.precision.scale()
            trainer.train_step(norm_wanted=True)
            rate = trainer.schedule.learning_rate()
            # The schedule is a function of applied steps.
            assert float(rate) == pytest.approx(1e-3 * 0.5 * (1 + math.cos(math.pi * num_applied / 40)), rel=1e-6)
            skipped = bool(trainer.precision.scale() < scale)
            assert all(map(torch.equal, before, training.parameters())) == skipped
            num_skipped, num_applied = num_skipped + skipped, num_applied + (not skipped)
            values = trainer.instruments.scale_values()
            assert (values["amp/skipped_steps"], values["amp/applied_steps"]) == (num_skipped, num_applied)
            assert int(trainer.instruments.applied_steps()) == num_applied
            assert values["amp/scale"] == scale
            assert values["amp/growth_tracker"] == trainer.precision.state_dict()["_growth_tracker"]
    assert num_skipped > 10
    assert num_applied > 5


@pytest.mark.parametrize("mode", ["fp32", "amp_fp16"])
def test_how_often_is_logged_evaluated_and_saved_changes_nothing(mode, tmp_path):
    overrides = (*GPT, f"precision={mode}", "trainer.steps=12", "trainer.max_grad_norm=null")
    quiet = assemble(*overrides, "trainer.log_every=100")
    quiet.train()
    busy = assemble(*overrides, "trainer.eval_every=2", "trainer.checkpoint_every=3", directory=tmp_path)
    busy.train()
    assert len(quiet.rows) < len(busy.rows)
    assert all(map(torch.equal, quiet.parameters(), busy.parameters()))
    assert quiet.rows[-1]["val/loss"] == busy.rows[-1]["val/loss"]


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16"])
def test_accumulating_micro_batches_is_one_large_batch(mode):
    large = assemble(*MLP, f"precision={mode}", "data.batch_size=48", "trainer.steps=1", "trainer.max_grad_norm=null")
    small = assemble(*MLP, f"precision={mode}", *ACCUMULATE, "trainer.steps=1", "trainer.max_grad_norm=null")
    batches = [small.built.data.train_batch(index) for index in range(3)]
    together = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))

    class Data:
        def train_batch(self, index):
            return together

    large.trainer.data = Data()
    losses = [training.trainer.train_step().loss.item() for training in (large, small)]
    tolerance = 1e-6 if mode == "fp32" else 1e-2
    assert losses[0] == pytest.approx(losses[1], rel=tolerance)


@pytest.mark.parametrize("mode", ["fp32", "pure_bf16"])
def test_the_norm_of_a_row_is_torchs_to_the_bit(mode):
    training = assemble(*MLP, f"precision={mode}", "trainer.steps=1", "trainer.max_grad_norm=null")
    theirs, step = [], training.trainer.precision.step

    def noting(optimizer):
        gradients = [parameter.grad for parameter in training.built.model.parameters()]
        theirs.append(torch.nn.utils.get_total_norm(gradients))
        step(optimizer)

    training.trainer.precision.step = noting
    ours = training.trainer.train_step(norm_wanted=True).grad_norm
    assert torch.equal(ours, theirs[0])
    assert ours > 0


class Task:
    """The loss of torch's own choice, over outputs much larger than itself."""

    def __init__(self, loss):
        self._loss = loss

    def loss(self, model, batch):
        return self._loss(model(batch[0]), batch[1])


@pytest.mark.parametrize("accumulate", [(), ACCUMULATE], ids=len)
@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss"])
def test_a_loss_keeps_no_outputs_alive(name, accumulate):
    training = assemble(*REGRESSION, *accumulate)
    trainer, alive = training.trainer, []
    trainer.task = Task(getattr(F, name))
    with trace_step(trainer.model, trainer.optimizers["optimizer"]) as trace:
        trainer.optimizers["optimizer"].register_step_pre_hook(
            lambda *_: alive.extend(life for life in trace.ledger.allocations if life.died is None)
        )
        step = trainer.train_step()
    assert step.loss.untyped_storage().nbytes() == 4
    assert sum(life.num_bytes for life in alive if life.category == "activations") == 4
    assert trace.result.kept["activations"] == 4


def test_a_loss_that_is_kept_is_the_one_that_was_computed():
    losses = []
    for task in (Task(F.mse_loss), Task(lambda outputs, targets: (outputs - targets).square().mean())):
        training = assemble(*REGRESSION)
        training.use_loss(task.loss)
        losses.append([training.trainer.train_step().loss.item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1])
