"""Trainings beyond one model and one loss: on two ranks they are what one process trains with the same samples."""

import pytest
from trainings import GPT, STRATEGIES, apart, assemble, column, composed, same, seeded, single

GAN = ("model=gan_digits", "optimizer=adam", "optimizer.lr=5.0e-4", "data.batch_size=8", "model.hidden_size=4")
OWN = ("model=custom", "data=digits", "data.batch_size=8", "optimizer=sgd")
CASES = {
    "gan": (*GAN, "task=gan"),
    "wgan_gp": (*GAN, "task=wgan_gp", "task.critic_steps=2"),
    "two_losses": ("model=two_headed", "model.hidden_size=16", "data.batch_size=8", "optimizer=sgd"),
    "checkpointed": (*GPT, "trainer.activation_checkpointing=true", "trainer.max_grad_value=0.01", "optimizer=sgd"),
    "frozen": (*OWN, "model._target_=rank_models.Frozen"),
    "own": (*OWN, "model._target_=rank_models.Net", "trainer.grad_accum_steps=2"),
    "normalized": (*OWN, "model._target_=rank_models.Normalized"),
}
OPTIMIZERS = {
    **{name: (f"optimizer={name}",) for name in ("adam", "adamw", "rmsprop", "adagrad")},
    **{
        name: ("optimizer=custom", f"optimizer._target_=torch.optim.{name}", "optimizer.lr=0.001")
        for name in ("NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Muon")
    },
}
"""Optimizers of torch that take shards of parameters, beside SGD."""
TWICE = ("wgan_gp",)
"""Cases that differentiate a backward pass, which FSDP2 cannot."""


ALWAYS = (
    *(("wgan_gp", "ddp", "fp32"), ("gan", "autocast", "amp_fp16"), ("two_losses", "ddp", "amp_fp16")),
    *(("checkpointed", "autocast", "fp32"), ("frozen", "ddp", "fp32"), ("own", "autocast", "amp_fp16")),
    ("normalized", "ddp", "fp32"),
)
"""The triples that run each time: each case once, each pair of a strategy and a mode."""
TRIPLES = [
    pytest.param(name, strategy, mode, marks=() if (name, strategy, mode) in ALWAYS else pytest.mark.nightly)
    for strategy in ("ddp", "autocast")
    for name in CASES
    for mode in ("fp32", "amp_fp16")
    if strategy == "ddp" or name not in TWICE
]


@pytest.mark.parametrize(("name", "strategy", "mode"), TRIPLES)
def test_ranks_train_what_one_process_trains(pair, name, strategy, mode):
    config = composed(*CASES[name], f"precision={mode}", *STRATEGIES[strategy], "precision.init_scale=1024.0")
    (rows, parameters, _), (_, others, _) = pair.run("cases.train", config=config)
    alone = assemble(single(config), loss=seeded)
    begun = alone.parameters()
    alone.train()
    assert same(parameters, others)
    assert apart(parameters, alone.parameters(), begun) < {"fp32": 1e-4, "amp_fp16": 1e-2}[mode]
    close = {"fp32": 1e-5, "amp_fp16": 1e-3}[mode]
    assert column(rows, "train/loss") == pytest.approx(column(alone.rows, "train/loss"), rel=close)
    assert column(rows, "amp/applied_steps") == column(alone.rows, "amp/applied_steps")


@pytest.mark.parametrize(
    "name", [name if name == "Muon" else pytest.param(name, marks=pytest.mark.nightly) for name in OPTIMIZERS]
)
def test_every_optimizer_steps_shards_as_it_steps_the_whole(pair, name):
    config = composed(
        *OWN,
        "model._target_=rank_models.Unbiased",
        *OPTIMIZERS[name],
        *STRATEGIES["autocast"],
        "precision=amp_fp16",
        "precision.init_scale=1024.0",
    )
    (rows, parameters, _), _ = pair.run("cases.train", config=config)
    alone = assemble(single(config), loss=seeded)
    begun = alone.parameters()
    alone.train()
    far, loss_apart = (0.05, 1e-3) if name == "Muon" else (1e-4, 1e-5)  # torch's Muon computes in bfloat16
    assert apart(parameters, alone.parameters(), begun) < far
    assert column(rows, "train/loss") == pytest.approx(column(alone.rows, "train/loss"), rel=loss_apart)
