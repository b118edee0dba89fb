"""Every mode on two ranks: the same losses and weights as one process, bitwise those of a loop written by hand."""

import pytest
import torch
from trainings import GPT, STRATEGIES, apart, assemble, column, composed, same, single

BASE = (*GPT, "trainer.grad_accum_steps=2", "trainer.max_grad_norm=0.5", "optimizer.weight_decay=0.1")
MODES = {"fp32": 1e-3, "amp_bf16": 0.15, "amp_fp16": 0.05, "pure_bf16": 0.3}
"""By mode how far what is trained may be from what one process trains, as a share of the way: it adds gradients up in
another order, and a policy rounds each to the dtype in which it is computed. The first steps of Adam go by signs."""
ALWAYS = (
    ("fp32", "policy"),
    ("amp_bf16", "policy"),
    ("amp_fp16", "autocast"),
    ("pure_bf16", "ddp"),
    ("amp_fp16", "ddp"),
)
CASES = [
    pytest.param(mode, strategy, marks=() if (mode, strategy) in ALWAYS else pytest.mark.nightly)
    for mode in MODES
    for strategy in STRATEGIES
    if mode.startswith("amp") or strategy != "autocast"
]  # fmt: skip


@pytest.mark.parametrize(("mode", "strategy"), CASES)
def test_ranks_train_as_one_process_and_as_a_loop_by_hand(pair, mode, strategy):
    config = composed(*BASE, f"precision={mode}", *STRATEGIES[strategy], "precision.init_scale=1024.0")
    first, second = pair.run("cases.train_and_by_hand", config=config)
    alone = assemble(single(config))
    begun = alone.parameters()
    alone.train()
    assert first["is_same"]
    assert second["is_same"]
    assert same(first["parameters"], second["parameters"])
    assert apart(first["parameters"], alone.parameters(), begun) <= MODES[mode]
    losses = column(first["rows"], "train/loss")
    assert losses == column(second["rows"], "train/loss")
    by_hand = [(mine + other) / 2 for mine, other in zip(first["losses"], second["losses"], strict=True)]
    assert losses == pytest.approx(by_hand, abs=0, rel=1e-15)
    assert losses == pytest.approx(column(alone.rows, "train/loss"), rel=MODES[mode] / 100)
    norms = column(first["rows"], "train/grad_norm")
    assert norms == column(second["rows"], "train/grad_norm")
    assert norms == pytest.approx(column(alone.rows, "train/grad_norm"), rel=MODES[mode] / 10)


@pytest.mark.parametrize(
    "strategy", ["policy", *(pytest.param(s, marks=pytest.mark.nightly) for s in ("ddp", "autocast"))]
)
def test_an_overflow_skips_the_step_of_all_ranks(pair, strategy):
    config = composed(*BASE, "precision=amp_fp16", *STRATEGIES[strategy], "precision.init_scale=1048576.0")
    first, second = pair.run("cases.train_and_by_hand", config=config)
    for rank in (first, second):
        assert rank["is_same"]
        assert 0 < column(rank["rows"], "amp/skipped_steps")[-1] < column(rank["rows"], "step")[-1]
        assert column(rank["rows"], "amp/scale") == rank["scales"]
    assert torch.isfinite(first["parameters"]["norm.weight"]).all()


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("autocast", marks=pytest.mark.nightly)])
def test_a_non_finite_gradient_of_one_rank_skips_all_steps(pair, strategy):
    config = composed(*BASE, *STRATEGIES[strategy], "precision=amp_fp16", "precision.init_scale=64.0")
    first, second = pair.run("cases.nan_on_one_rank", config=config, at_step=5)
    for _, rows, _ in (first, second):
        assert column(rows, "amp/skipped_steps")[:3] == [0, 0, 1], "of two micro-batches a step"
    assert same(first[2], second[2])


def test_ranks_that_disagree_on_the_scale_end_the_run(pair):
    config = composed(*BASE, *STRATEGIES["ddp"], "precision=amp_fp16", "precision.init_scale=64.0")
    for error in pair.run("cases.disagree", config=config):
        assert "the ranks disagree at step 2: amp/scale is 64 on rank 0, 128 on rank 1" in error
