"""A step from the inside: the order of its calls, their contexts, the scale and skipped steps."""

import math

import pytest
import torch
import torch.nn.functional as F
from assembled import GPT, MLP, assemble, trained

from ampsweep.observe.step import trace_step

ACCUMULATE = ("trainer.grad_accum_steps=3",)
REGRESSION = ("model=mlp_recipe", "data.in_features=32", "data.out_features=64", "data.batch_size=16")
OVERFLOWS = ("precision=amp_fp16", "precision.init_scale=1099511627776.0", "precision.growth_interval=4")


def noting(calls, name, function):
    def call(*arguments, **more):
        calls.append(name)
        return function(*arguments, **more)

    return call


@pytest.mark.parametrize(
    ("mode", "settings", "expected"),
    [
        *(
            (mode, ["max_grad_norm=1"], "autocast backward unscale_ step update")
            for mode in ("fp32", "amp_bf16", "amp_fp16")
        ),
        ("amp_fp16", ["max_grad_norm=null"], "autocast backward step update"),
        *(
            ("amp_fp16", ["grad_accum_steps=3", *limits], "autocast backward " * 3 + "unscale_ step update")
            for limits in (["max_grad_norm=1"], ["max_grad_norm=1", "max_grad_value=0.1"], ["max_grad_value=0.1"])
        ),
    ],
)
def test_a_step_calls_the_same_in_the_same_order_in_every_mode(mode, settings, expected):
    settings = [f"trainer.{setting}" for setting in settings]
    trainer, calls = assemble(*MLP, f"precision={mode}", *settings).trainer, []
    precision, autocast = trainer.precision, trainer._autocast
    for name in ("backward", "unscale_", "step", "update"):
        setattr(precision, name, noting(calls, name, getattr(precision, name)))
    trainer._backward = trainer.parallel.backward(precision)

    class Noted:
        __enter__ = staticmethod(noting(calls, "autocast", autocast.__enter__))
        __exit__ = staticmethod(autocast.__exit__)

    trainer._autocast = Noted()
    trainer.train_step()
    assert calls == expected.split()


def test_forward_and_loss_are_under_autocast_and_backward_is_not():
    training, seen = assemble(*MLP, "precision=amp_bf16", "trainer.steps=1"), {}
    model, loss = training.built.model, training.built.task.loss
    is_on = lambda: torch.is_autocast_enabled("cpu")  # noqa: E731
    model.register_forward_hook(lambda *_: seen.update(forward=is_on()))
    next(model.parameters()).register_hook(lambda _: seen.update(backward=is_on()))
    training.use_loss(lambda model, batch: seen.update(loss=is_on()) or loss(model, batch))
    training.trainer.train_step()
    assert seen == {"forward": True, "loss": True, "backward": False}


@pytest.mark.parametrize(("optimizer", "fused"), [("adamw", "true"), ("adamw", "false"), ("sgd", "true")])
def test_overflowing_steps_change_no_parameter_and_are_counted(optimizer, fused):
    chosen = (f"optimizer={optimizer}", f"optimizer.fused={fused}", "trainer.steps=40", "scheduler=cosine")
    training = assemble(*MLP, *OVERFLOWS, *chosen)
    trainer = training.trainer
    with trainer.instruments, trainer.precision.flags():
        num_skipped = num_applied = 0
        for _ in range(40):
            before, scale = training.parameters(), trainer.precision.scale()
            trainer.train_step(norm_wanted=True)
            rate = float(trainer.schedule.learning_rate())  # a function of applied steps
            assert rate == pytest.approx(1e-3 * 0.5 * (1 + math.cos(math.pi * num_applied / 40)), rel=1e-6)
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


def test_how_often_is_logged_evaluated_and_saved_changes_nothing(tmp_path):
    overrides = (*GPT, "precision=amp_fp16", "trainer.steps=12", "trainer.max_grad_norm=null")
    quiet = trained(*overrides, "trainer.log_every=100")
    busy = trained(*overrides, "trainer.eval_every=2", "trainer.checkpoint_every=3", directory=tmp_path)
    assert len(quiet.rows) < len(busy.rows)
    assert all(map(torch.equal, quiet.parameters(), busy.parameters()))
    assert quiet.rows[-1]["val/loss"] == busy.rows[-1]["val/loss"]


@pytest.mark.parametrize("accumulate", [(), ACCUMULATE], ids=len)
def test_a_loss_keeps_no_outputs_alive(accumulate):
    """torch keeps the value of `mse_loss` in a storage as large as the outputs."""
    training, alive = assemble(*REGRESSION, *accumulate), []
    optimizer = training.trainer.optimizers["optimizer"]
    training.use_loss(lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
    with trace_step(training.trainer.model, optimizer) as trace:
        optimizer.register_step_pre_hook(
            lambda *_: alive.extend(life for life in trace.ledger.allocations if life.died is None)
        )
        step = training.trainer.train_step()
    assert step.loss.untyped_storage().nbytes() == 4
    assert sum(life.num_bytes for life in alive if life.category == "activations") == 4
    assert trace.result.kept["activations"] == 4
