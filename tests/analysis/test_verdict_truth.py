"""Sweeps simulated with a known truth: the verdict finds what was planted, and nothing in pure noise."""

from collections import Counter

import numpy as np
import pytest
from synthetic_records import sweep, workload

NUM_SWEEPS = 300
SEEDS = 5
LOSS = 2.0
MARGIN = 0.01 * LOSS


def simulated(speedup=1.0, gap=0.0, memory_mib=1000.0):
    """Shares of words on simulated sweeps: steps with 2% of noise, losses with a fifth of the margin."""
    rng = np.random.default_rng(7)
    found = Counter()
    for _ in range(NUM_SWEEPS):
        seeds = rng.normal(LOSS, 0.05, SEEDS)
        entries = []
        for arm, factor, shift, peak in (("fp32", 1.0, 0.0, 1000.0), ("amp_bf16", speedup, gap, memory_mib)):
            times = 100 / factor * np.exp(rng.normal(0, 0.02, SEEDS))
            losses = seeds + shift + rng.normal(0, MARGIN / 5, SEEDS)
            entries += sweep(arm, times.tolist(), val_loss=losses.tolist(), peak_mib=peak)
        verdict = workload(entries).verdict
        judged = verdict.arms[0].judgements
        found.update([judged.speed, judged.memory + " memory", judged.parity, verdict.recommendation.arm])
    return {word: count / NUM_SWEEPS for word, count in found.items()}


@pytest.mark.parametrize(
    ("planted", "at_least", "at_most"),
    [
        ({}, {"same memory": 1.0, "equivalent": 0.95, "fp32": 0.9}, {"worse": 0.0, "amp_bf16": 0.05}),
        ({"speedup": 1.5, "memory_mib": 600.0}, {"faster": 1.0, "saves memory": 1.0, "amp_bf16": 0.95}, {}),
        ({"speedup": 0.7, "memory_mib": 600.0}, {"slower": 1.0, "fp32": 1.0}, {}),
        ({"speedup": 1.5, "gap": 2 * MARGIN}, {"worse": 0.95}, {"amp_bf16": 0.0}),
        ({"speedup": 1.5, "gap": MARGIN}, {}, {"amp_bf16": 0.09}),
        ({"gap": -2 * MARGIN}, {"better": 0.95}, {}),
        ({"memory_mib": 600.0}, {"amp_bf16": 0.9}, {}),
    ],
    ids=["nothing", "speedup", "slowdown", "worse loss", "a loss at the margin", "better loss", "memory alone"],
)
def test_the_verdict_finds_what_was_planted(planted, at_least, at_most):
    found = simulated(**planted)
    assert all(found.get(word, 0) >= share for word, share in at_least.items()), found
    assert all(found.get(word, 0) <= share for word, share in at_most.items()), found
    assert planted or found.get("faster", 0) + found.get("slower", 0) < 0.1
