"""Trainings beyond one model and one loss: on two ranks they are what one process trains with the same samples."""

from itertools import product

import pytest
from trainings import GPT, OWN, STRATEGIES, Training, apart, assert_same, column, composed, seeded, single

GAN = ("model=gan_digits", "optimizer=adam", "optimizer.lr=5.0e-4", "data.batch_size=8", "model.hidden_size=4")
CASES = {
    "gan": (*GAN, "task=gan"),
    "wgan_gp": (*GAN, "task=wgan_gp", "task.critic_steps=2"),
    "two_losses": ("model=two_headed", "model.hidden_size=16", "data.batch_size=8", "optimizer=sgd"),
    "checkpointed": (*GPT, "trainer.activation_checkpointing=true", "trainer.max_grad_value=0.01", "optimizer=sgd"),
    "llama": ("model=llama_tiny", "model.hidden_size=16", *GPT[5:], "optimizer=sgd"),
    "frozen": (*OWN, "model._target_=rank_models.Frozen"),
    "own": (*OWN, "model._target_=rank_models.Net", "trainer.grad_accum_steps=2"),
    "normalized": (*OWN, "model._target_=rank_models.Normalized"),
}
ALWAYS = (
    *("gan autocast amp_fp16", "wgan_gp ddp fp32", "two_losses ddp amp_fp16", "checkpointed autocast fp32"),
    *("frozen ddp fp32", "own autocast amp_fp16", "normalized ddp fp32", "llama autocast fp32"),
)
"""Each workload once, each pair of a strategy and a mode."""
ALL = [" ".join(case) for case in product(CASES, ("ddp", "autocast"), ("fp32", "amp_fp16"))]
ALL = [case for case in ALL if "wgan_gp autocast" not in case]  # FSDP2 cannot differentiate a backward pass
NIGHTLY = [pytest.param(case, marks=pytest.mark.nightly) for case in ALL if case not in ALWAYS]
OPTIMIZERS = ("Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD")
"""Optimizers of torch that take shards of parameters, beside SGD and Muon."""


def trained_on_ranks_and_alone(pair, *overrides):
    """Rows of the ranks and of one process, and how far apart their parameters are."""
    config = composed(*overrides, "precision.init_scale=1024.0")
    (rows, parameters, _), (_, others, _) = pair.run("train", config=config)
    assert_same(parameters, others)
    alone = Training(single(config), loss=seeded)
    begun = alone.parameters()
    alone.train()
    return rows, alone.rows, apart(parameters, alone.parameters(), begun)


@pytest.mark.parametrize("case", [*ALWAYS, *NIGHTLY])
def test_ranks_train_what_one_process_trains(pair, case):
    name, strategy, mode = case.split()
    overrides = (*CASES[name], *STRATEGIES[strategy], f"precision={mode}")
    rows, rows_alone, is_apart = trained_on_ranks_and_alone(pair, *overrides)
    assert is_apart < {"fp32": 1e-4, "amp_fp16": 1e-2}[mode]
    close = {"fp32": 1e-5, "amp_fp16": 1e-3}[mode]
    assert column(rows, "train/loss") == pytest.approx(column(rows_alone, "train/loss"), rel=close)
    assert column(rows, "amp/applied_steps") == column(rows_alone, "amp/applied_steps")


def test_an_unused_parameter_is_named_in_its_step_or_does_not_matter(pair):
    overrides = (*OWN, "model._target_=rank_models.Unused", *STRATEGIES["ddp"], "precision=fp32")
    for error in pair.run("error_of", config=composed(*overrides, "trainer.steps=1")):
        assert "the loss does not depend on the parameter idle.weight, and DDP waits" in error
    rows, rows_alone, is_apart = trained_on_ranks_and_alone(pair, *overrides, "parallel.find_unused_parameters=true")
    assert is_apart < 1e-4
    assert column(rows, "train/loss") == pytest.approx(column(rows_alone, "train/loss"), rel=1e-5)


@pytest.mark.parametrize("strategy", ["ddp", "autocast"])
def test_a_schedule_unfreezes_and_metrics_are_means_on_ranks_too(pair, strategy):
    task = ("task=custom", "task._target_=rank_models.Gradual")
    overrides = (*OWN, "model._target_=rank_models.Net", *task, *STRATEGIES[strategy], "precision=fp32")
    if strategy == "ddp":
        for error in pair.run("error_of", config=composed(*overrides)):
            assert "the loss does not depend on the parameter first.weight, and DDP waits" in error
        overrides = (*overrides, "parallel.find_unused_parameters=true")
    rows, rows_alone, is_apart = trained_on_ranks_and_alone(pair, *overrides)
    assert is_apart < 1e-4
    assert column(rows, "train/loss") == pytest.approx(column(rows_alone, "train/loss"), rel=1e-5)
    assert column(rows, "train/accuracy") == column(rows_alone, "train/accuracy")


@pytest.mark.parametrize("name", ["Muon", *(pytest.param(name, marks=pytest.mark.nightly) for name in OPTIMIZERS)])
def test_every_optimizer_steps_shards_as_it_steps_the_whole(pair, name):
    optimizer = ("optimizer=custom", f"optimizer._target_=torch.optim.{name}", "optimizer.lr=0.001")
    model = (*OWN, "model._target_=rank_models.Net", "+model.bias=false")  # Muon takes matrices only
    overrides = (*model, *optimizer, *STRATEGIES["autocast"], "precision=amp_fp16")
    rows, rows_alone, is_apart = trained_on_ranks_and_alone(pair, *overrides)
    far, loss_apart = (0.05, 1e-3) if name == "Muon" else (1e-4, 1e-5)  # torch's Muon computes in bfloat16
    assert is_apart < far
    assert column(rows, "train/loss") == pytest.approx(column(rows_alone, "train/loss"), rel=loss_apart)
