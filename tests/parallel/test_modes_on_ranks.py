"""Every mode on two ranks: the same losses and weights as one process, bitwise those of a loop written by hand."""

import pytest
import torch
from trainings import GPT, STRATEGIES, Training, apart, assert_same, column, composed, single

BASE = (*GPT, "trainer.grad_accum_steps=2", "trainer.max_grad_norm=0.5", "optimizer.weight_decay=0.1")
APART = {"fp32": 1e-3, "amp_bf16": 0.15, "amp_fp16": 0.05, "pure_bf16": 0.3}
"""By mode how far what is trained may be from what one process trains, as a share of the way: it adds gradients up in
another order, and a policy rounds each to the dtype in which it is computed. The first steps of Adam go by signs."""
ALWAYS = ("fp32 policy", "amp_bf16 policy", "amp_fp16 autocast", "pure_bf16 ddp", "amp_fp16 ddp")
NIGHTLY = ("fp32 ddp", "amp_bf16 ddp", "amp_bf16 autocast", "amp_fp16 policy", "pure_bf16 policy")


@pytest.mark.parametrize("case", [*ALWAYS, *(pytest.param(case, marks=pytest.mark.nightly) for case in NIGHTLY)])
def test_ranks_train_as_one_process_and_as_a_loop_by_hand(pair, case):
    mode, strategy = case.split()
    config = composed(*BASE, f"precision={mode}", *STRATEGIES[strategy], "precision.init_scale=1024.0")
    ranks = pair.run("train_and_by_hand", config=config)
    (rows, parameters, losses, _), (rows_of_second, others, losses_of_second, _) = ranks
    alone = Training(single(config))
    begun = alone.parameters()
    alone.train()
    assert_same(parameters, others)
    assert apart(parameters, alone.parameters(), begun) <= APART[mode]
    by_hand = [(mine + other) / 2 for mine, other in zip(losses, losses_of_second, strict=True)]
    assert column(rows, "train/loss") == pytest.approx(by_hand, abs=0, rel=1e-15)
    for key, loose in (("train/loss", 100), ("train/grad_norm", 10)):
        assert column(rows, key) == column(rows_of_second, key)
        assert column(rows, key) == pytest.approx(column(alone.rows, key), rel=APART[mode] / loose)


@pytest.mark.parametrize(
    "strategy", ["policy", *(pytest.param(s, marks=pytest.mark.nightly) for s in ("ddp", "autocast"))]
)
def test_an_overflow_skips_the_step_of_all_ranks(pair, strategy):
    config = composed(*BASE, "precision=amp_fp16", *STRATEGIES[strategy], "precision.init_scale=1048576.0")
    for rows, parameters, _, scales in pair.run("train_and_by_hand", config=config):
        assert 0 < column(rows, "amp/skipped_steps")[-1] < column(rows, "step")[-1]
        assert column(rows, "amp/scale") == scales
        assert torch.isfinite(parameters["norm.weight"]).all()


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("autocast", marks=pytest.mark.nightly)])
def test_a_non_finite_gradient_of_one_rank_skips_all_steps(pair, strategy):
    config = composed(*BASE, *STRATEGIES[strategy], "precision=amp_fp16", "precision.init_scale=64.0")
    ranks = pair.run("train", config=config, nan_at=5)
    for rows, _, _ in ranks:
        assert column(rows, "amp/skipped_steps")[:3] == [0, 0, 1], "of two micro-batches a step"
    assert_same(ranks[0][1], ranks[1][1])


def test_ranks_that_disagree_on_the_scale_end_the_run(pair):
    config = composed(*BASE, *STRATEGIES["ddp"], "precision=amp_fp16", "precision.init_scale=64.0")
    for error in pair.run("error_of", config=config, grows_alone=True):
        assert "the ranks disagree at step 2: amp/scale is 64 on rank 0, 128 on rank 1" in error
