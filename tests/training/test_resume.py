"""A training resumes from its checkpoint as if it had never stopped, in the same precision or another."""

import pytest
import torch
from assembled import GPT, MLP, StopAfter, assemble, assert_resumes_bitwise, resumed

from ampsweep.training.checkpoint import load_checkpoint

VARYING = ("scheduler=cosine", "scheduler.num_warmup_steps=3", "optimizer.lr=1e-2")
OVERFLOWING = ("precision=amp_fp16", "precision.init_scale=4194304", "precision.growth_interval=3")
SCALER = ("precision.init_scale=1048576",)


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
        ("precision=fp32", "optimizer=sgd", "optimizer.momentum=0.9"),
        ("precision=amp_bf16",),
        OVERFLOWING,
        (*OVERFLOWING, "optimizer.fused=false"),
        *((f"precision={mode}", *SCALER) for mode in ("pure_bf16", "bf16_sr", "master_bf16", "master_fp16")),
    ],
    ids=" ".join,
)
def test_a_resumed_training_is_bitwise_an_unbroken_one(settings, tmp_path):
    overrides = (*GPT, *settings, *VARYING, "trainer.steps=14", "trainer.grad_accum_steps=2")
    whole = assert_resumes_bitwise(tmp_path, *overrides)
    if settings[:3] == OVERFLOWING:
        skipped = whole.column("amp/skipped_steps")
        assert skipped[6] > 0, "some were skipped before"
        assert skipped[14] < 14, "and some applied"
    if settings == ("precision=amp_bf16",):
        training, _ = resumed(tmp_path, *overrides)
        torch.manual_seed(99)
        training.train()
        losses = training.column("train/loss")[6], whole.column("train/loss")[6]
        assert losses[0] != losses[1], "random numbers count"


def test_scaler_and_schedule_take_the_resuming_runs_settings(stopped):
    amp = (*MLP, "precision=amp_fp16", "precision.init_scale=128", "trainer.steps=14", "scheduler=linear")
    directory = stopped(*amp, "optimizer.lr=1e-2")
    training, notes = resumed(directory, *amp, "optimizer.lr=1e-3", "precision.growth_interval=4")
    training.train()
    assert notes == []
    assert training.column("train/lr") == pytest.approx({n: 1e-3 * (1 - (n - 1) / 14) for n in range(6, 15)})
    assert list(training.column("amp/growth_tracker").values()) == [2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert list(training.column("amp/scale").values()) == [128] * 3 + [256] * 4 + [512] * 2


def test_a_scaler_starts_afresh_or_is_left_behind(stopped):
    steps = ("trainer.steps=8", "scheduler=linear")
    directory = stopped(*MLP, "precision=amp_bf16", *steps)
    training, notes = resumed(directory, *MLP, "precision=amp_fp16", "precision.init_scale=1e38", *steps)
    assert notes == ["the checkpoint has no GradScaler state; a fresh one starts at scale 1e+38"]
    training.train()
    assert training.column("amp/skipped_steps")[8] == 3
    assert training.column("amp/applied_steps")[8] == 5, "those before the checkpoint"
    training, notes = resumed(stopped(*MLP, *OVERFLOWING, *steps), *MLP, *steps)
    assert notes == ["the checkpoint's GradScaler state is ignored; this run has no scaler"]
    applied = int(training.instruments.applied_steps())
    assert applied < 5, "the schedule goes on from the steps that were applied"
    training.train()
    assert training.column("train/lr")[6] == pytest.approx(1e-3 * (1 - applied / 8))
    assert not [key for row in training.rows for key in row if key.startswith("amp/")]


def test_the_next_batch_is_the_first_that_was_not_seen(stopped):
    directory = stopped(*MLP, "trainer.steps=8", "trainer.grad_accum_steps=3")
    training, _ = resumed(directory, *MLP, "trainer.steps=8", "trainer.grad_accum_steps=2")
    asked, train_batch = [], training.trainer.data.train_batch
    training.trainer.data.train_batch = lambda index: asked.append(index) or train_batch(index)
    training.train()
    assert asked == [15, 16, 17, 18, 19, 20]


def test_where_nothing_is_left_to_train_the_end_is_evaluated(stopped):
    training, notes = resumed(stopped(*MLP, "trainer.steps=8"), *MLP, "trainer.steps=5")
    assert notes == ["the checkpoint is of step 5 of 5: nothing is left to train"]
    assert training.train().status == "completed"
    assert training.rows == []
    assert training.trainer.recorder.values.keys() == {"val/loss", "val/accuracy"}


def test_weights_and_state_take_the_dtype_of_the_precision(stopped, tmp_path):
    overrides = (*MLP, "trainer.steps=7")
    checkpoint = load_checkpoint(stopped(*overrides) / "checkpoints/last.pt")
    low, notes = resumed(tmp_path, *overrides, "precision=pure_bf16")
    what = ("parameters", "AdamW's state")
    assert notes == [f"the checkpoint's {each} in float32 became bfloat16: rounded" for each in what]
    for name, parameter in low.built.model.named_parameters():
        assert torch.equal(parameter, checkpoint.model[name].bfloat16())
    (saved,) = checkpoint.optimizers.values()
    states = [*low.optimizer.state.values()]
    for state, before in zip(states, saved["state"]["state"].values(), strict=True):
        assert float(state["step"]) == 5
        assert state["step"].dtype == torch.float32, "a count that bfloat16 could not hold beyond 256"
        assert all(torch.equal(state[name], before[name].bfloat16()) for name in ("exp_avg", "exp_avg_sq"))
    back, notes = resumed(low.keep(tmp_path), *overrides)
    exact = "in bfloat16 became float32: exact, with no more digits than were saved"
    assert notes == [f"the checkpoint's {each} {exact}" for each in what]
    for state, before in zip(back.optimizer.state.values(), states, strict=True):
        assert state["exp_avg_sq"].dtype == torch.float32
        assert torch.equal(state["exp_avg_sq"], before["exp_avg_sq"].float())
