"""The record of a training on several ranks: what stands in it for all of them."""

import pytest
from synthetic_records import LOST_BITS, disproved, run

from ampsweep.analysis.runs import Run
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.parallel.base import Parallel
from ampsweep.recorder.rank_figures import add_rank_figures


class Ranks(Parallel):
    """Rank 0 of several, whose others have these records."""

    def __init__(self, others):
        self.others, self.world_size = others, 1 + len(others)

    def gather(self, value):
        return [value, *self.others]


@pytest.mark.parametrize("is_last", [False, True])
def test_a_rank_that_contradicts_the_mode_disproves_the_run(is_last):
    good, bad = run("fp32")[1], disproved("fp32")[1]
    first, others = (good, [good, bad]) if is_last else (bad, [good, good])
    add_rank_figures(first, PRECISION_MODES["fp32"], Ranks([*others]), num_steps=0)
    assert Run("there", first).contradictions == (LOST_BITS,)


def test_ranks_in_their_mode_leave_the_proof_of_the_first():
    first, other = (run("fp32", num_operators=number)[1] for number in (400, 300))
    add_rank_figures(first, PRECISION_MODES["fp32"], Ranks([other]), num_steps=0)
    assert first.proof.num_operators == 400
    assert Run("there", first).contradictions == ()
