"""A loss scale far too large: overflow, skipped steps and recovery in record, history and W&B; and what is learned."""

import math
import statistics
from itertools import pairwise

import pytest
from command_line import GPT, MLP, only_run
from wandb_file import read_wandb_file

INIT_SCALE = 1099511627776  # 2**40
AMP = ["amp/scale", "amp/growth_tracker", "amp/skipped_steps", "amp/applied_steps"]


def test_overflow_skips_steps_until_the_scale_fits_and_then_trains(train):
    ended = train(
        *("model=mlp_small", "tracking.mode=offline", "predict.with_runs=false", "precision=amp_fp16"),
        *(f"precision.init_scale={INIT_SCALE}", "precision.growth_interval=25", "trainer.steps=150"),
        *("trainer.log_every=1", "scheduler=constant", "scheduler.num_warmup_steps=9", "optimizer.lr=1e-3"),
    )
    assert ended.code == 0
    run = only_run()
    history, summary = run.history, run.record.summary
    assert [row["step"] for row in history] == list(range(1, 151))
    assert all(row["amp/skipped_steps"] + row["amp/applied_steps"] == row["step"] for row in history)
    num_first = sum(row["amp/applied_steps"] == 0 for row in history)
    assert num_first > 10
    scales = [row["amp/scale"] for row in history]
    assert scales[: num_first + 1] == [INIT_SCALE * 0.5**step for step in range(num_first + 1)]

    skipped = [after["amp/skipped_steps"] > before["amp/skipped_steps"] for before, after in pairwise(history)]
    grown = [row["amp/growth_tracker"] == 0 and not skip for row, skip in zip(history[1:], skipped, strict=True)]
    factors = [after / before for before, after in pairwise(scales[1:])]
    assert factors == [0.5 if skip else 2.0 if grow else 1.0 for skip, grow in zip(skipped, grown, strict=True)][:-1]
    assert 2.0 in factors, "after enough applied steps it grows again"
    assert run.record.status == "completed"
    assert summary["amp/skipped_steps"] == history[-1]["amp/skipped_steps"] >= num_first
    assert summary["amp/applied_steps"] == history[-1]["amp/applied_steps"]

    applied_before = [0.0, *(row["amp/applied_steps"] for row in history[:-1])]
    rates = [1e-3 * min((applied + 1) / 10, 1) for applied in applied_before]
    assert [row["train/lr"] for row in history] == pytest.approx(rates), "a skipped step does not advance the schedule"

    losses = list(run.column("train/loss").values())
    assert all(map(math.isfinite, losses)), "it is the gradients that overflow"
    assert statistics.mean(losses[-10:]) < 0.3 * statistics.mean(losses[:num_first])

    tracked = read_wandb_file(run.directory / run.record.wandb.directory)
    assert tracked.history == [pytest.approx(row, rel=0, abs=0, nan_ok=True) for row in history]
    assert {key: tracked.summary[key] for key in AMP} == {key: summary[key] for key in AMP}
    assert tracked.config["arm"] == "amp_fp16+init_scale=1099511627776.0+growth_interval=25"


def test_a_scale_that_collapses_is_a_recorded_outcome(train):
    ended = train(
        *(
            "model=mlp_small",
            "tracking=disabled",
            "precision=amp_fp16",
            "precision.init_scale=1e-7",
            "trainer.steps=60",
        ),
        *("trainer.steps=60", "optimizer.lr=1e30", "trainer.max_grad_norm=null", "trainer.log_every=1"),
        "predict.with_runs=false",
    )
    record = only_run().record
    assert (ended.code, record.status) == (0, "diverged")
    assert "the scale collapsed" in record.error


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.nightly), "amp_bf16", "amp_fp16"])
def test_digits_are_learned_in_every_precision(precision, train):
    arguments = ("trainer.steps=null", "trainer.epochs=10", "optimizer.lr=2e-3", f"precision={precision}")
    assert train(*MLP, *arguments).code == 0
    record = only_run().record
    assert record.identity.steps == 224
    assert record.summary["val/accuracy"] >= 0.9
    assert record.summary["val/loss"] < 0.4


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "amp_fp16"])
def test_text_is_learned_beyond_the_frequency_of_letters(precision, train):
    # A model that knows nothing has a loss of 5.5, one that knows how often each byte comes of 3.3 (its entropy).
    lengths = ("trainer.steps=200", "trainer.log_every=50", "trainer.eval_every=50", "data.num_val_batches=8")
    assert train(*GPT, *lengths, "optimizer.lr=1e-2", f"precision={precision}").code == 0
    losses = list(only_run().column("val/loss").values())
    assert losses[-1] < min(3.25, losses[0])  # on the way it may rise: rounding and text differ
