"""Steps that go wrong on one rank: no rank goes on alone."""

import pytest
from trainings import MLP, STRATEGIES, column, composed, same


@pytest.mark.parametrize("strategy", ["ddp", "autocast"])
def test_a_non_finite_gradient_of_one_rank_skips_all_steps(pair, strategy):
    config = composed(*MLP, *STRATEGIES[strategy], "precision=amp_fp16", "precision.init_scale=64.0")
    answers = pair.run("cases.nan_on_one_rank", config=config, at_step=3)
    for _, rows, _ in answers:
        assert column(rows, "amp/skipped_steps")[:3] == [0, 0, 1]
    assert same(answers[0][2], answers[1][2])


def test_ranks_that_disagree_on_the_scale_end_the_run(pair):
    config = composed(*MLP, *STRATEGIES["ddp"], "precision=amp_fp16", "precision.init_scale=64.0")
    for error in pair.run("cases.disagree", config=config):
        assert "the ranks disagree at step 2: amp/scale is 64 on rank 0, 128 on rank 1" in error
