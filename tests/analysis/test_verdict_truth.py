"""Sweeps simulated with a known truth: the verdict finds what was planted, and nothing in pure noise."""

from collections import Counter

import numpy as np
import pytest
from synthetic_records import sweep

from ampsweep.analysis.comparison import compare

NUM_SWEEPS = 300
SEEDS = 5
LOSS = 2.0
MARGIN = 0.01 * LOSS


def verdicts(*, speedup=1.0, gap=0.0, memory_mib=1000.0):
    """Verdicts on simulated sweeps of fp32 and amp_bf16: steps with 2% of noise, losses with a fifth of the margin."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(NUM_SWEEPS):
        seeds = rng.normal(LOSS, 0.05, SEEDS)
        entries = []
        for arm, factor, shift, peak in (("fp32", 1.0, 0.0, 1000.0), ("amp_bf16", speedup, gap, memory_mib)):
            times = 100 / factor * np.exp(rng.normal(0, 0.02, SEEDS))
            losses = seeds + shift + rng.normal(0, MARGIN / 5, SEEDS)
            entries += sweep(arm, times.tolist(), val_loss=losses.tolist(), peak_mib=peak)
        (workload,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
        found.append(workload.verdict)
    return found


def shares(words):
    counted = Counter(words)
    return {word: count / NUM_SWEEPS for word, count in counted.items()}


def judged(found, what):
    return shares(getattr(verdict.arms[0].judgements, what) for verdict in found)


def recommended(found):
    return shares(verdict.recommendation.arm for verdict in found)


@pytest.fixture(scope="module")
def noise():
    return verdicts()


def test_in_pure_noise_hardly_anything_is_faster_slower_or_worse(noise):
    speed = judged(noise, "speed")
    assert speed.get("faster", 0) + speed.get("slower", 0) < 0.1
    assert judged(noise, "memory") == {"same": 1.0}
    assert judged(noise, "parity")["equivalent"] > 0.95
    assert "worse" not in judged(noise, "parity")


def test_in_pure_noise_the_baseline_is_kept(noise):
    assert recommended(noise).get("amp_bf16", 0) < 0.05
    assert recommended(noise)["fp32"] > 0.9


def test_a_planted_speedup_is_found_and_recommended():
    found = verdicts(speedup=1.5, memory_mib=600.0)
    assert judged(found, "speed") == {"faster": 1.0}
    assert judged(found, "memory") == {"saves": 1.0}
    assert recommended(found)["amp_bf16"] > 0.95


def test_a_planted_slowdown_is_found_and_not_recommended():
    found = verdicts(speedup=0.7, memory_mib=600.0)
    assert judged(found, "speed") == {"slower": 1.0}
    assert recommended(found) == {"fp32": 1.0}


def test_a_planted_loss_of_quality_is_found_and_refused():
    found = verdicts(speedup=1.5, gap=2 * MARGIN)
    assert judged(found, "parity")["worse"] > 0.95
    assert recommended(found).get("amp_bf16", 0) == 0


def test_a_loss_as_large_as_the_margin_is_hardly_recommended():
    assert recommended(verdicts(speedup=1.5, gap=MARGIN)).get("amp_bf16", 0) < 0.09


def test_a_planted_gain_of_quality_is_found():
    assert judged(verdicts(gap=-2 * MARGIN), "parity")["better"] > 0.95


def test_memory_alone_is_a_reason_where_the_speed_is_the_same():
    assert recommended(verdicts(memory_mib=600.0)).get("amp_bf16", 0) > 0.9
