"""A watched training ends before a number that is not finite ruins it, and says which operator or gradient it was."""

import math
import re

import pytest
import torch
from assembled import CPU, MLP, NoStop, assemble
from torch import nn

from ampsweep.tasks.classification import Classification
from ampsweep.training.checkpoint import load_checkpoint
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume
from ampsweep.training.step_guard import BegunStep, DeviceGuard, NonfiniteStepError, TakenTurn

WATCHED = ("numerics.watch=true", "data=digits", "data.batch_size=16", "trainer.steps=12", "trainer.log_every=100")
"""Rows are far apart: nothing but the guard looks at the numbers in time."""


class Explosive(nn.Module):
    """Goes wrong from its fifth forward pass on."""

    def __init__(self, how="exp"):
        super().__init__()
        self.how, self.num_calls = how, 0
        self.first, self.norm, self.dropout = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, images):
        hidden = self.dropout(self.norm(self.first(images.flatten(1))))
        is_bad, self.num_calls = self.num_calls >= 4, self.num_calls + (torch.is_grad_enabled())
        hidden = self.second(hidden)
        if is_bad:
            hidden = getattr(self, self.how)(hidden)
        return self.head(hidden)

    def exp(self, hidden):
        return torch.exp(hidden * 1e4)

    def zero_by_zero(self, hidden):
        return (hidden - hidden) / (hidden - hidden)

    def all_masked(self, hidden):
        scores = hidden.masked_fill(torch.ones_like(hidden, dtype=torch.bool), -math.inf)
        return torch.softmax(scores, 1)

    def gradient(self, hidden):
        return hidden + torch.sqrt(hidden * 0)


def model(how="exp", *more):
    return ("model=custom", f"model._target_={__name__}.Explosive", f"+model.how={how}", *WATCHED, *more)


SITES = {
    "exp": ("aten.exp", "model"),
    "zero_by_zero": ("aten.div", "model"),
    "all_masked": ("aten._softmax", "model"),
}


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "pure_bf16"])
@pytest.mark.parametrize("how", SITES)
def test_a_loss_that_is_no_number_ends_it_at_that_very_step(how, precision, tmp_path):
    good = assemble(*model(how, f"precision={precision}", "trainer.steps=4"))
    good.train()
    training = assemble(*model(how, f"precision={precision}"), directory=tmp_path)
    ending = training.train()
    assert (ending.status, training.trainer.step) == ("diverged", 5)
    operator, _ = SITES[how]
    line = re.escape(__file__.rpartition("/")[2])
    named = operator.removeprefix("aten.")
    pattern = rf"the training loss is (nan|inf) at step 5: {named} in the model \(.*{line}, line \d+\) was the first to"
    assert re.match(pattern, ending.error), ending.error
    assert all(map(torch.equal, training.parameters(), good.parameters())), "the parameters are those of step 4"
    assert all(map(torch.equal, training.built.model.buffers(), good.built.model.buffers()))
    site = training.trainer.watch.numerics().nonfinite_site
    assert (site.step, site.module, site.operator) == (5, "", operator)
    assert not math.isfinite(training.column("train/loss")[5])


def test_a_gradient_that_is_not_finite_ends_it(tmp_path):
    training = assemble(*model("gradient", "trainer.max_grad_norm=1"), directory=tmp_path)
    ending = training.train()
    assert (ending.status, training.trainer.step) == ("diverged", 5)
    assert ending.error == (
        "the norm of the gradients is nan at step 5: of the gradients that are not finite backward reached that of "
        f"{'second.bias' if 'second.bias' in ending.error else 'second.weight'} first"
    )
    assert all(one.isfinite().all() for one in training.parameters())
    assert training.trainer.watch.numerics().nonfinite_site is None


@pytest.mark.parametrize("clip", ["trainer.max_grad_value=null", "trainer.max_grad_value=0.1"])
def test_gradients_nobody_clips_by_norm_are_guarded_as_well(clip):
    training = assemble(*model("gradient", clip))
    ending = training.train()
    assert ending.error.startswith("the gradients are not finite at step 5: of the gradients")
    assert all(one.isfinite().all() for one in training.parameters())


def test_its_checkpoint_is_that_of_before_the_step(tmp_path):
    training = assemble(*model("exp"), directory=tmp_path)
    training.train()
    assert training.saved == [4]
    checkpoint = load_checkpoint(tmp_path / "checkpoints/last.pt")
    assert (checkpoint.step, checkpoint.next_batch, checkpoint.applied_steps) == (4, 4, 4)
    again = assemble(*model("exp"))
    again.built.model.num_calls = 4
    resume(again.trainer, find_checkpoint(tmp_path / "checkpoints/last.pt"))
    ending = again.train()
    assert (ending.status, again.trainer.step) == ("diverged", 5)
    assert again.column("train/loss")[5] == pytest.approx(training.column("train/loss")[5], nan_ok=True)


def test_a_training_may_diverge_in_its_first_step(tmp_path):
    training = assemble(*model("exp"), directory=tmp_path)
    before = training.parameters()
    training.built.model.num_calls = 4
    ending = training.train()
    assert ending.error.startswith("the training loss is nan at step 1: exp in the model")
    assert all(map(torch.equal, before, training.parameters()))
    assert load_checkpoint(tmp_path / "checkpoints/last.pt").step == 0


def test_a_batch_with_nan_is_told_as_the_cause():
    training = assemble(*MLP, *WATCHED)
    plain = training.built.data.train_batch

    def spoiled(index):
        images, labels = plain(index)
        return (images * math.nan if index == 6 else images), labels

    training.built.data.train_batch = spoiled
    ending = training.train()
    assert ending.error == "the training loss is nan at step 7: its batch holds values that are not finite"
    assert all(one.isfinite().all() for one in training.parameters())


def test_accumulated_losses_are_guarded():
    training = assemble(*model("exp", "trainer.grad_accum_steps=3"))
    ending = training.train()
    assert ending.error.startswith("the training loss is nan at step 2: exp in the model")


class MaskedAttention(nn.Module):
    """Attention with a causal mask of infinities, which are meant, and a head that overflows."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 10)
        self.num_calls = 0

    def forward(self, images):
        tokens = images.flatten(1).unflatten(1, (8, 8))
        query, key, value = self.qkv(tokens).chunk(3, -1)
        mask = torch.full((8, 8), -math.inf).triu(1)
        mixed = torch.softmax(query @ key.transpose(1, 2) + mask, -1) @ value
        self.num_calls += 1
        if self.num_calls > 3:
            mixed = mixed / torch.zeros_like(mixed)
        return self.head(mixed.mean(1))


def test_infinities_of_a_mask_are_not_the_cause():
    training = assemble("model=custom", f"model._target_={__name__}.MaskedAttention", *WATCHED)
    ending = training.train()
    assert "the training loss is nan at step 4: div in the model" in ending.error


class LossThatOverflows(Classification):
    """The loss, outside of any module, overflows."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss.half() * 1e5


def test_an_operator_of_the_loss_is_outside_the_model():
    training = assemble(*MLP, *WATCHED, task=LossThatOverflows())
    ending = training.train()
    assert ending.error.startswith("the training loss is inf at step 1: mul in the loss (")
    assert "was the first to return inf or nan in float16, from inputs of up to 2." in ending.error


class Broken(Classification):
    """Its gradient overflows whatever the scale, in the batches from the fourth on."""

    seen = 0

    def loss(self, model, batch):
        self.seen += 1
        loss = super().loss(model, batch)
        return loss * (1e37 if self.seen > 3 else 1)


def test_a_collapsed_scale_names_the_gradients_that_overflowed(tmp_path):
    training = assemble(
        *MLP, "numerics.watch=true", "precision=amp_fp16", "precision.init_scale=1e-3", "trainer.steps=60",
        task=Broken(), directory=tmp_path,
    )  # fmt: skip
    ending = training.train()
    assert ending.status == "diverged"
    assert re.search(
        r"the scale collapsed to .* at step \d+: of the gradients that were not finite backward reached that of "
        r"head\.\w+ first in \d+ of \d+ skipped steps",
        ending.error,
    ), ending.error
    assert training.saved == [training.trainer.step]


def test_a_loss_that_stays_no_number_under_a_scaler_is_explained(tmp_path):
    training = assemble(
        *model("exp", "precision=amp_fp16", "trainer.steps=60"), "trainer.log_every=1", directory=tmp_path
    )
    ending = training.train()
    assert ending.status == "diverged"
    assert "no step since step 4 was applied: exp in the model (" in ending.error
    assert "in float16" in ending.error
    assert training.saved == [training.trainer.step]


def test_a_finite_training_is_left_alone(tmp_path):
    training = assemble(*MLP, *WATCHED, directory=tmp_path)
    assert training.train().status == "completed"
    assert training.saved == []


def begun(loss):
    step = BegunStep(1, 0, 0, None)
    step.turns.append(TakenTurn(0, None, losses=[torch.tensor(loss)]))
    return step


@pytest.mark.parametrize(("loss", "gradient"), [(math.nan, 1.0), (1.0, math.inf)])
def test_on_the_device_no_step_after_a_bad_one_is_taken(loss, gradient):
    """The flag of a fused optimizer works on the CPU as well."""
    parameter = nn.Parameter(torch.ones(32))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=True)
    guard = DeviceGuard(CPU)

    def take_step(one):
        one.step()

    def step(loss, gradient):
        parameter.grad = torch.full_like(parameter, gradient)
        guard.step(begun(loss), take_step, optimizer, None)

    step(1.0, 1.0)
    guard.poll()
    after_good = parameter.detach().clone()
    assert not torch.equal(after_good, torch.ones(32))
    step(loss, gradient)
    step(1.0, 1.0)
    assert torch.equal(parameter, after_good)
    with pytest.raises(NonfiniteStepError):
        guard.poll(waits=True)
    assert int(optimizer.state[parameter]["step"]) == 1


def test_a_stop_is_still_heard():
    training = assemble(*MLP, *WATCHED)
    assert training.train(NoStop()).status == "completed"
