"""Metrics that a task returns beside its loss reach the rows, and cost a training nothing else."""

import pytest
import torch
import torch.nn.functional as F
from assembled import assemble, own, trained
from torch import nn

from ampsweep.tasks.base import Turn
from ampsweep.tasks.classification import Classification

STEPS, ACCUMULATE = 4, 3
MORE = (f"trainer.steps={STEPS}", f"trainer.grad_accum_steps={ACCUMULATE}", "precision=amp_bf16")


class VAE(nn.Module):
    def __init__(self, latent=4):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 2 * latent), nn.Linear(latent, 64)

    def forward(self, images):
        mean, log_variance = self.encoder(images.flatten(1)).float().chunk(2, dim=1)
        latent = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(latent), mean, log_variance


class ELBO:
    """With as many metrics as asked for, of which the first two are parts of the loss, with their graphs."""

    seen = []

    def __init__(self, num_metrics=2):
        self.num_metrics = num_metrics

    def loss(self, model, batch):
        outputs, mean, log_variance = model(batch[0])
        reconstruction = F.mse_loss(outputs.float(), batch[0].flatten(1))
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean() / 64
        more = {f"number_{n}": torch.tensor(n) for n in range(2, self.num_metrics)}
        self.seen.append((reconstruction.item(), kl.item()))
        metrics = {"reconstruction": reconstruction, "kl": kl, **more}
        return (reconstruction + kl, metrics) if self.num_metrics else reconstruction + kl

    def evaluate(self, model, batch):
        return {"loss": F.mse_loss(model.decoder(model(batch[0])[1]), batch[0].flatten(1))}, len(batch[0])


class InTurns(Classification):
    def with_error(self, model, batch):
        loss = self.loss(model, batch)
        return [loss, 0 * loss, {"copy": loss}]

    @property
    def turns(self):
        trains = {"head": ["2.*"]}
        return [Turn(name="plain", loss=self.loss, trains={"rest": ["1.*"]})] + [
            Turn(name="head", loss=self.with_error, trains=trains)
        ] * 2


def layers():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))


def task(name):
    return "task=custom", f"task._target_={__name__}.{name}"


def vae(num_metrics):
    return own(
        __name__, "VAE", "task=custom", f"task._target_={__name__}.ELBO", f"+task.num_metrics={num_metrics}", *MORE
    )


def test_a_row_has_their_means_over_the_micro_batches_of_its_step():
    ELBO.seen.clear()
    training = trained(*vae(12), "trainer.log_every=2")
    of_step = torch.tensor(ELBO.seen).reshape(STEPS, ACCUMULATE, 2).mean(1)
    for place, key in enumerate(("train/reconstruction", "train/kl")):
        assert [*training.column(key).values()] == pytest.approx(of_step[1::2, place].tolist(), rel=1e-6)
    assert all(training.column(f"train/number_{n}") == {2: n, 4: n} for n in range(2, 12)), (
        "more than a row usually has"
    )
    assert training.trainer.recorder.values["train/kl"] == training.rows[-1]["train/kl"]
    plain = trained(*vae(0), "trainer.log_every=2")
    assert all(map(torch.equal, plain.parameters(), training.parameters()))
    assert plain.column("train/loss") == training.column("train/loss")


def test_no_output_or_graph_outlives_its_micro_batch():
    step = assemble(*vae(2)).trainer.train_step()
    values = [value for values in step.metrics.values() for value in values]
    assert [value.untyped_storage().nbytes() for value in values] == [4] * 2 * ACCUMULATE
    assert not any(value.requires_grad for value in values)


def test_each_turn_may_have_some():
    row = trained(*own(__name__, "layers", *task("InTurns"), "trainer.steps=1")).rows[0]
    assert row["train/copy"] != row["train/loss/head"], "of both times that the turn was taken"
    assert row["train/loss"] == pytest.approx(row["train/loss/plain"] + row["train/loss/head"])
