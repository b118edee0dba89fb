"""A training goes on from its checkpoint as if it had never stopped."""

import pytest
import torch
from assembled import GPT, MLP, StopAfter, assemble, resumed

SAME = ("train/loss", "train/grad_norm", "train/lr", "val/loss")
SCALER = ("amp/scale", "amp/growth_tracker", "amp/skipped_steps", "amp/applied_steps")
VARYING = ("scheduler=cosine", "scheduler.num_warmup_steps=3", "optimizer.lr=1e-2")
OVERFLOWING = ("precision=amp_fp16", "precision.init_scale=4194304", "precision.growth_interval=3")


@pytest.fixture
def stopped(tmp_path):
    """The directory of a training with these overrides that was stopped after its fifth step."""

    def stop(*overrides):
        assemble(*overrides, directory=tmp_path).train(StopAfter(5))
        return tmp_path

    return stop


@pytest.mark.parametrize(
    "settings",
    [
        ("precision=fp32",),
        ("precision=amp_bf16",),
        ("precision=pure_bf16",),
        OVERFLOWING,
        (*OVERFLOWING, "optimizer.fused=false"),
        ("precision=fp32", "optimizer=sgd", "optimizer.momentum=0.9"),
    ],
    ids=["fp32", "amp_bf16", "pure_bf16", "amp_fp16", "amp_fp16, not fused", "sgd"],
)
def test_losses_after_a_resume_are_those_of_an_unbroken_run(settings, stopped):
    overrides = (*GPT, *settings, *VARYING, "trainer.steps=14", "trainer.grad_accum_steps=2")
    reference = assemble(*overrides)
    reference.train()
    training, notes = resumed(stopped(*overrides), *overrides)
    assert training.train().status == "completed"
    assert notes == []
    for key in SAME + SCALER:
        expected = {step: value for step, value in reference.column(key).items() if step > 5}
        assert training.column(key) == expected, key
    assert all(map(torch.equal, training.parameters(), reference.parameters()))
    if settings[:3] == OVERFLOWING:
        skipped = training.column("amp/skipped_steps")
        assert skipped[6] > 0, "some were skipped before"
        assert skipped[14] < 14, "and some applied"


def test_with_other_random_numbers_the_losses_would_differ(stopped):
    overrides = (*GPT, "trainer.steps=8")
    reference = assemble(*overrides)
    reference.train()
    training, _ = resumed(stopped(*overrides), *overrides)
    torch.manual_seed(99)
    training.train()
    assert training.column("train/loss")[6] != reference.column("train/loss")[6]


def test_the_hyperparameters_are_those_of_the_run_that_resumes(stopped):
    directory = stopped(*MLP, "optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "trainer.steps=8")
    changed = ("optimizer.lr=0.01", "optimizer.momentum=0.5", "optimizer.weight_decay=0.1")
    training, notes = resumed(directory, *MLP, "optimizer=sgd", *changed, "trainer.steps=8")
    assert notes == []
    (group,) = training.built.optimizers["optimizer"].param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.01, 0.5, 0.1)
    assert all("momentum_buffer" in state for state in training.built.optimizers["optimizer"].state.values())
    training.train()
    assert set(training.column("train/lr").values()) == {0.01}


def test_a_schedule_on_the_device_takes_the_resuming_runs_peak(stopped):
    amp = (*MLP, "precision=amp_fp16", "scheduler=linear", "trainer.steps=10")
    training, _ = resumed(stopped(*amp, "optimizer.lr=1e-2"), *amp, "optimizer.lr=1e-3")
    training.train()
    expected = {step: 1e-3 * (1 - (step - 1) / 10) for step in range(6, 11)}
    assert training.column("train/lr") == pytest.approx(expected)


def test_the_scaler_takes_the_resuming_runs_growth(stopped):
    amp = (*MLP, "precision=amp_fp16", "precision.init_scale=128", "trainer.steps=14")
    training, notes = resumed(stopped(*amp), *amp, "precision.growth_interval=4")
    training.train()
    assert notes == []
    assert list(training.column("amp/growth_tracker").values()) == [2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert list(training.column("amp/scale").values()) == [128] * 3 + [256] * 4 + [512] * 2


def test_an_optimizer_of_another_class_starts_fresh_and_says_so(stopped):
    directory = stopped(*MLP, "optimizer=adamw", "trainer.steps=8")
    training, notes = resumed(directory, *MLP, "optimizer=sgd", "trainer.steps=8")
    assert notes == ["the checkpoint's AdamW state is ignored; SGD starts fresh"]
    assert training.built.optimizers["optimizer"].state == {}
    assert training.train().status == "completed"


def test_a_run_that_had_no_scaler_starts_a_fresh_one(stopped):
    directory = stopped(*MLP, "trainer.steps=8")
    training, notes = resumed(directory, *MLP, "precision=amp_fp16", "precision.init_scale=1024", "trainer.steps=8")
    assert notes == ["the checkpoint has no GradScaler state; a fresh one starts at scale 1024"]
    training.train()
    assert training.column("amp/scale") == {6: 1024, 7: 1024, 8: 1024}
    assert training.column("amp/applied_steps") == {6: 6, 7: 7, 8: 8}


def test_a_scalers_state_is_ignored_where_there_is_no_scaler(stopped):
    directory = stopped(*MLP, *OVERFLOWING, "scheduler=linear", "trainer.steps=8")
    training, notes = resumed(directory, *MLP, "scheduler=linear", "trainer.steps=8")
    assert notes == ["the checkpoint's GradScaler state is ignored; this run has no scaler"]
    applied = int(training.trainer.instruments.applied_steps())
    assert applied < 5, "the schedule goes on from the steps that were applied"
    training.train()
    assert training.column("train/lr")[6] == pytest.approx(1e-3 * (1 - applied / 8))
    assert not [key for row in training.rows for key in row if key.startswith("amp/")]


def test_the_next_batch_is_the_one_that_was_not_seen_yet(stopped):
    directory = stopped(*MLP, "trainer.steps=8", "trainer.grad_accum_steps=3")
    training, _ = resumed(directory, *MLP, "trainer.steps=8", "trainer.grad_accum_steps=2")
    asked = []
    train_batch = training.trainer.data.train_batch
    training.trainer.data.train_batch = lambda index: asked.append(index) or train_batch(index)
    training.train()
    assert asked == [15, 16, 17, 18, 19, 20]


def test_where_nothing_is_left_to_train_the_end_is_evaluated(stopped):
    directory = stopped(*MLP, "trainer.steps=8")
    training, notes = resumed(directory, *MLP, "trainer.steps=5")
    assert notes == ["the checkpoint is of step 5 of 5: nothing is left to train"]
    assert training.train().status == "completed"
    assert training.rows == []
    assert training.trainer.recorder.values.keys() == {"val/loss", "val/accuracy"}
