"""Verdicts: what is said of synthetic runs (`golden/verdicts.md`), and that it is true of simulated sweeps."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from synthetic_records import UNKNOWN, contaminated, disproved, document, failed, run, sweep, workload

from ampsweep.analysis.statistics import Estimate
from ampsweep.analysis.time_to_loss import TimeToLoss
from ampsweep.records.sections import Float8Proof, ModeProof

LOSSES, SAME, OPEN = [2.00, 2.02, 1.98], [2.001, 2.019, 1.981], [2.02, 2.005, 2.0]
WORSE, BETTER = [2.10, 2.12, 2.08], [1.90, 1.92, 1.88]
TIMES, NEARLY = [150.0, 153.0, 147.0], [151.0, 154.0, 148.0]
FAST, FASTER, SLOW = [100.0, 101.0, 99.0], [75.0, 76.0, 74.0], [300.0, 303.0, 297.0]
SEEDS = range(3)
EMULATED = ModeProof(num_operators=400, float8=Float8Proof(emulated="a CPU multiplies no float8"))
WAITING = {"summary": {"perf/data_wait_ms": 1.0}}


def arm(name, times=FAST, **more):
    return sweep(name, times, **({"val_loss": SAME[: len(times)]} | more))


FP32 = arm("fp32", TIMES, val_loss=LOSSES)
BF16 = arm("amp_bf16", peak_mib=600.0)


def bf16(times=FAST, **more):
    return FP32 + arm("amp_bf16", times, **more)


def fp16(times=FAST, **more):
    return arm("amp_fp16", times, **more)


def accuracy(values, losses=None):
    of_fp32 = arm("fp32", TIMES, accuracy=0.9, val_loss=losses and LOSSES)
    return of_fp32 + arm("amp_bf16", accuracy=values, val_loss=losses)


CASES = {
    "another arm": FP32 + BF16,
    "the baseline": bf16(SLOW, peak_mib=600.0),
    "nothing to judge": FP32 + [failed("tf32", seed, "failed", "KeyError: x") for seed in SEEDS],
    "baseline out of memory": [failed("fp32", seed, "oom") for seed in SEEDS] + BF16,
    "no other arm": FP32,
    "too small": sweep("fp32", [6.0, 6.1, 5.9], **WAITING) + sweep("amp_bf16", [4.0] * 3, **WAITING),
    "pair missing": bf16(FAST[:2], peak_mib=[900.0, 700.0]),
    "single pair": [run("fp32"), run("amp_bf16", peak_mib=600.0)],
    "cut short": bf16(cut_short="trainer.max_seconds=20 passed"),
    "same speed, less memory": bf16(TIMES, peak_mib=[400.0, 900.0, 950.0]),
    "unresolved speed, more memory": bf16([151.0, 149.0, 150.0], peak_mib=1250.0),
    "hardly known speed": bf16([60.0, 190.0, 110.0]),
    "contaminated": [*bf16(FAST[:2]), contaminated("amp_bf16", 2), contaminated("fp32", 3)],
    "all contaminated": FP32 + [contaminated("amp_bf16", seed, val_loss=SAME[seed]) for seed in SEEDS],
    "nothing timed": bf16([None] * 3, peak_mib=None),
    "launching": bf16([4.0, 4.1, 3.9]),
    "launching and data": FP32 + sweep("amp_bf16", [4.0] * 3, **WAITING),
    "measured launching": FP32 + sweep("amp_bf16", [4.0] * 3, summary={"perf/launch_ms": 3.9}),
    "unchecked": bf16(**UNKNOWN),
    "worse loss": bf16(val_loss=WORSE),
    "better loss": bf16(val_loss=BETTER),
    "constant gap": arm("fp32", TIMES, val_loss=2.0) + arm("amp_bf16", val_loss=2.015625),
    "no gap": bf16(val_loss=LOSSES),
    "baseline's loss of 0": arm("fp32", TIMES, val_loss=0.0) + BF16,
    "loss open": bf16(val_loss=OPEN),
    "loss hopeless": bf16(val_loss=[2.5, 1.52, 2.18]),
    "no loss": arm("fp32", TIMES, val_loss=None) + arm("amp_bf16", val_loss=None),
    "accuracy": accuracy([0.901, 0.899, 0.9]),
    "worse accuracy": accuracy([0.85, 0.852, 0.848]),
    "better accuracy, same loss": accuracy([0.95, 0.952, 0.948], SAME),
    "open accuracy, better loss": accuracy([0.92, 0.91, 0.90], BETTER),
    "worse accuracy, open loss": accuracy([0.85, 0.852, 0.848], OPEN),
    "unsupported": [*FP32, *(failed("tf32", seed, "unsupported", "no TF32 here") for seed in SEEDS), *BF16],
    "out of memory": FP32 + [failed("amp_fp16", seed, "oom", "no memory") for seed in SEEDS],
    "diverged": [*FP32, *sweep("amp_fp16", [50.0, 51.0]), failed("amp_fp16", 2, "diverged", "nan")],
    "some out of memory": FP32 + BF16 + [failed("tf32", seed, "oom") for seed in range(2)] + [run("tf32", 2)],
    "all diverged": FP32 + [failed("tf32", seed, "diverged", f"nan at step {10 - seed}") for seed in SEEDS],
    "all diverged without a word": FP32 + [failed("tf32", seed, "diverged") for seed in SEEDS],
    "both diverged": [*FP32[:2], failed("fp32", 2, "diverged"), *BF16[:2], failed("amp_bf16", 2, "diverged")],
    "baseline diverged once": [*FP32, failed("fp32", 3, "diverged", "nan"), *BF16],
    "slower and open": FP32 + BF16 + fp16([400.0, 404.0, 396.0], val_loss=OPEN),
    "faster, of two pairs": FP32 + BF16 + fp16(FASTER[:2]),
    "faster and open": FP32 + BF16 + fp16(FASTER, val_loss=OPEN),
    "two open": FP32 + arm("amp_bf16", val_loss=OPEN) + fp16(val_loss=OPEN),
    "disturbed and worse": FP32 + [contaminated("amp_bf16", seed, val_loss=WORSE[seed]) for seed in SEEDS],
    "slow and cut short": FP32 + fp16([1500.0, 1540.0, 1460.0], cut_short="trainer.max_seconds=20"),
    "not worse, maybe better": bf16(val_loss=[1.99, 1.99, 1.96]),
    "emulated": FP32 + sweep("fp8_rowwise", [None] * 3, val_loss=2.0, peak_mib=None, proof=EMULATED),
    "disproved": [*FP32, *(run("amp_fp16", seed) for seed in range(2)), disproved("amp_fp16", 2)],
}
LARGE = fp16(peak_mib=[600.0, 700.0, 900.0])
CHOICES = {
    "no baseline": workload(FP32, baseline="x"),
    "a margin of 20%": workload(bf16(val_loss=WORSE), margin_pct=20.0),
    "the fastest": workload(FP32 + BF16 + fp16(FASTER, peak_mib=700.0)),
    "of two as fast the smaller": workload(FP32 + BF16 + fp16(FAST[::-1], peak_mib=500.0)),
    "of two as fast and as large the first": workload(FP32 + BF16 + fp16(FAST[::-1], peak_mib=595.0)),
    "fits but for one run": workload(bf16([120.0, 121.0, 119.0], peak_mib=600.0) + LARGE, memory_gib=0.75),
    "baseline does not fit": workload(bf16(SLOW, peak_mib=600.0), memory_gib=0.75),
    "nothing fits": workload(FP32 + BF16, memory_gib=0.1),
    "nothing fits, pair missing": workload(bf16(FAST[:2], peak_mib=50.0), memory_gib=0.1),
}
BEATEN = {
    "better in two": FP32 + BF16,
    "worse in all": bf16(SLOW, val_loss=WORSE, peak_mib=1100.0),
    "faster, more memory": bf16(peak_mib=1100.0),
    "faster, worse loss": bf16(val_loss=WORSE, peak_mib=600.0),
    "slower, better loss": bf16(SLOW, val_loss=BETTER, peak_mib=1100.0),
    "1% less memory": bf16(NEARLY, peak_mib=990.0),
    "10% less memory": bf16(NEARLY, peak_mib=900.0),
    "faster, open loss": bf16(val_loss=[2.08, 1.95, 2.0], peak_mib=600.0),
    "less memory, open time": bf16([60.0, 290.0, 150.0], peak_mib=600.0),
    "two pairs": bf16(FAST[:2], peak_mib=600.0),
    "no loss": arm("fp32", TIMES, val_loss=None) + arm("amp_bf16", val_loss=None),
    "against each other they are known": arm("fp32", [100.0, 200.0, 400.0], val_loss=LOSSES, peak_mib=500.0)
    + arm("amp_bf16", [80.0, 160.0, 320.0], peak_mib=600.0)
    + fp16([90.0, 180.5, 359.0], peak_mib=600.0),
    "by an arm on the front": FP32 + BF16 + arm("pure_bf16", [50.0, 50.5, 49.5], peak_mib=400.0),
    "an arm that cannot train": [*bf16(val_loss=WORSE, peak_mib=600.0), failed("tf32", 0, "unsupported")],
}


def test_verdicts_and_conclusions(golden):
    found = {name: workload(entries) for name, entries in CASES.items()}
    every = found | CHOICES
    assert found["no other arm"].verdict.front is None
    fronts = {name: workload(entries).verdict.front for name, entries in BEATEN.items()}
    arms = {f"{name}, {arm.arm}": arm for name, of in found.items() for arm in of.verdict.arms}
    parities = ((name, of) for name, arm in arms.items() for of in arm.judgements.parities)
    time = {"baseline_s": 2.0, "arm_s": 1.0, "speedup": Estimate(value=2.0, n=3, exact=True), "target": 1.0}
    reached = TimeToLoss(metric="train/loss", margin_pct=1.0, n=3, num_reached=3, **time)
    standings = {
        f"{name}, {arm.arm}": of.verdict.recommendation.standing(arm)
        + "".join(f", {why.sentence}" for why in ((arm.refusal,) if arm.refusal else arm.missing))
        for name, of in every.items()
        for arm in of.verdict.arms
    }
    text = document(
        verdict={name: of.verdict.sentence for name, of in every.items()},
        standing=standings,
        words={name: f"{of.speed}, {of.memory}, {of.parity}" for name, arm in arms.items() for of in (arm.judgements,)},
        parity={f"{name}, {of.metric}, {of.further_seeds} further": of.sentence for name, of in parities},
        front={name: f"{of.sentence} (loss {of.arms[1].loss})" for name, of in fronts.items()},
        time_to_loss=[reached, replace(reached, num_reached=0, speedup=None)],
    )
    golden("verdicts.md", text)


NUM_SWEEPS, NUM_SEEDS = 300, 5
LOSS = 2.0
MARGIN = 0.01 * LOSS


def simulated(speedup=1.0, gap=0.0, memory_mib=1000.0):
    """Shares of words on simulated sweeps: steps with 2% of noise, losses with a fifth of the margin."""
    rng = np.random.default_rng(7)
    found = Counter()
    for _ in range(NUM_SWEEPS):
        seeds = rng.normal(LOSS, 0.05, NUM_SEEDS)
        entries = []
        for name, factor, shift, peak in (("fp32", 1.0, 0.0, 1000.0), ("amp_bf16", speedup, gap, memory_mib)):
            times = 100 / factor * np.exp(rng.normal(0, 0.02, NUM_SEEDS))
            losses = seeds + shift + rng.normal(0, MARGIN / 5, NUM_SEEDS)
            entries += sweep(name, times.tolist(), val_loss=losses.tolist(), peak_mib=peak)
        verdict = workload(entries).verdict
        judged = verdict.arms[0].judgements
        found.update([judged.speed, judged.memory + " memory", judged.parity, verdict.recommendation.arm])
    return {word: count / NUM_SWEEPS for word, count in found.items()}


@pytest.mark.parametrize(
    ("planted", "at_least", "at_most"),
    [
        ({}, {"same memory": 1.0, "equivalent": 0.95, "fp32": 0.9}, {"worse": 0.0, "amp_bf16": 0.05, "faster": 0.05}),
        ({"speedup": 1.5, "memory_mib": 600.0}, {"faster": 1.0, "saves memory": 1.0, "amp_bf16": 0.95}, {}),
        ({"speedup": 1.5, "gap": 2 * MARGIN}, {"worse": 0.95}, {"amp_bf16": 0.0}),
        ({"speedup": 1.5, "gap": MARGIN}, {}, {"amp_bf16": 0.09}),
    ],
    ids=["nothing", "speedup", "worse loss", "a loss at the margin"],
)
def test_the_verdict_finds_what_was_planted(planted, at_least, at_most):
    found = simulated(**planted)
    assert all(found.get(word, 0) >= share for word, share in at_least.items()), found
    assert all(found.get(word, 0) <= share for word, share in at_most.items()), found
