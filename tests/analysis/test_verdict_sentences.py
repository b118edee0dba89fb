"""The sentences of judgements and verdicts on synthetic runs (`golden/verdicts.md`)."""

from dataclasses import replace

from synthetic_records import contaminated, disproved, document, failed, run, sweep, workload

from ampsweep.analysis.statistics import Estimate
from ampsweep.analysis.time_to_loss import TimeToLoss
from ampsweep.record.sections import Float8Proof, ModeProof

LOSSES, SAME = [2.00, 2.02, 1.98], [2.001, 2.019, 1.981]
TIMES, FAST = [150.0, 153.0, 147.0], [100.0, 101.0, 99.0]
FP32 = sweep("fp32", TIMES, val_loss=LOSSES)
BF16 = sweep("amp_bf16", FAST, val_loss=SAME, peak_mib=600.0)
EMULATED = ModeProof(num_operators=400, float8=Float8Proof(emulated="a CPU multiplies no float8"))
UNKNOWN = {"contamination": {"verdict": "unknown", "reasons": ["nothing tells"]}}


def bf16(times=FAST, **more):
    return FP32 + sweep("amp_bf16", times, **({"val_loss": SAME[: len(times)]} | more))


def accuracy(values):
    return sweep("fp32", TIMES, val_loss=None, accuracy=0.9) + sweep("amp_bf16", FAST, val_loss=None, accuracy=values)


def with_summary(entries, **figures):
    for _, record in entries:
        record.summary |= {f"perf/{key}": value for key, value in figures.items()}
    return entries


def test_verdicts_and_conclusions(golden):
    seeds = range(3)
    small = sweep("fp32", [6.0, 6.1, 5.9]) + sweep("amp_bf16", [4.0] * 3, peak_mib=600.0)
    cases = {
        "another arm": FP32 + BF16,
        "the baseline": FP32 + sweep("amp_fp16", [300.0, 303.0, 297.0], val_loss=SAME, peak_mib=600.0),
        "nothing to judge": FP32 + [failed("tf32", seed, "failed", "KeyError: x") for seed in seeds],
        "baseline out of memory": [failed("fp32", seed, "oom") for seed in seeds] + BF16,
        "no other arm": FP32,
        "too small": with_summary(small, data_wait_ms=1.0),
        "pair missing": bf16(FAST[:2], peak_mib=[900.0, 700.0]),
        "single pair": [run("fp32"), run("amp_bf16", peak_mib=600.0)],
        "cut short": bf16(cut_short="trainer.max_seconds=20 passed"),
        "same speed, less memory": bf16(TIMES, peak_mib=[400.0, 900.0, 950.0]),
        "unresolved speed, more memory": bf16([151.0, 149.0, 150.0], peak_mib=1250.0),
        "hardly known speed": bf16([60.0, 190.0, 110.0]),
        "contaminated": [*bf16(FAST[:2]), contaminated("amp_bf16", 2), contaminated("fp32", 3)],
        "all contaminated": FP32 + [contaminated("amp_bf16", seed, val_loss=SAME[seed]) for seed in seeds],
        "nothing timed": bf16([None] * 3, peak_mib=None),
        "launching": bf16([4.0, 4.1, 3.9]),
        "launching and data": FP32 + with_summary(sweep("amp_bf16", [4.0] * 3), data_wait_ms=1.0),
        "measured launching": FP32 + with_summary(sweep("amp_bf16", [4.0] * 3), launch_ms=3.9),
        "unchecked": bf16(**UNKNOWN),
        "worse loss": bf16(val_loss=[2.10, 2.12, 2.08]),
        "better loss": bf16(val_loss=[1.90, 1.92, 1.88]),
        "constant gap": sweep("fp32", TIMES, val_loss=2.0) + sweep("amp_bf16", FAST, val_loss=2.015625),
        "no gap": bf16(val_loss=LOSSES),
        "loss open": bf16(val_loss=[2.02, 2.005, 2.0]),
        "loss hopeless": bf16(val_loss=[2.5, 1.52, 2.18]),
        "no loss": sweep("fp32", TIMES, val_loss=None) + sweep("amp_bf16", FAST, val_loss=None),
        "accuracy": accuracy([0.901, 0.899, 0.9]),
        "worse accuracy": accuracy([0.85, 0.852, 0.848]),
        "unsupported": [*FP32, *(failed("tf32", seed, "unsupported", "no TF32 here") for seed in seeds), *BF16],
        "out of memory": FP32 + [failed("amp_fp16", seed, "oom", "no memory") for seed in seeds],
        "diverged": [*FP32, *sweep("amp_fp16", [50.0, 51.0]), failed("amp_fp16", 2, "diverged", "nan")],
        "some out of memory": FP32 + BF16 + [failed("tf32", seed, "oom") for seed in range(2)] + [run("tf32", 2)],
        "all diverged": FP32 + [failed("tf32", seed, "diverged", f"nan at step {10 - seed}") for seed in seeds],
        "both diverged": [*FP32[:2], failed("fp32", 2, "diverged"), *BF16[:2], failed("amp_bf16", 2, "diverged")],
        "baseline diverged once": [*FP32, failed("fp32", 3, "diverged", "nan"), *BF16],
        "slower and open": FP32 + BF16 + sweep("amp_fp16", [400.0, 404.0, 396.0], val_loss=[2.02, 2.005, 2.0]),
        "faster, of two pairs": FP32 + BF16 + sweep("amp_fp16", [75.0, 76.0], val_loss=SAME),
        "slow and cut short": FP32 + sweep("amp_fp16", [1500.0, 1540.0, 1460.0], cut_short="trainer.max_seconds=20"),
        "not worse, maybe better": bf16(val_loss=[1.99, 1.99, 1.96]),
        "emulated": FP32 + sweep("fp8_rowwise", [None] * 3, val_loss=2.0, peak_mib=None, proof=EMULATED),
        "disproved": [*FP32, *(run("amp_fp16", seed) for seed in range(2)), disproved("amp_fp16", 2)],
    }
    found = {name: workload(entries) for name, entries in cases.items()} | {"no baseline": workload(FP32, baseline="x")}
    for name, of in found.items():
        assert bool(of.verdict.to_decide) == of.verdict.sentence.startswith("Not decidable yet: "), name
    arms = {f"{name}, {arm.arm}": arm for name, of in found.items() for arm in of.verdict.arms}
    time = {"baseline_s": 2.0, "arm_s": 1.0, "speedup": Estimate(value=2.0, n=3, exact=True), "target": 1.0}
    reached = TimeToLoss(metric="train/loss", margin_pct=1.0, n=3, num_reached=3, **time)
    every = ((name, one) for name, of in found.items() for one in of.verdict.recommendation.standings)
    standings = ((f"{name}, {one.arm}", f"{one.standing}: {one.reason}") for name, one in every)
    text = document(
        verdict={name: of.verdict.sentence for name, of in found.items()},
        conclusion={name: of.conclusion for name, of in found.items()},
        standing=dict(standings),
        words={name: f"{of.speed}, {of.memory}, {of.parity}" for name, arm in arms.items() for of in (arm.judgements,)},
        speed={name: arm.judgements.speed_text for name, arm in arms.items()},
        parity={name: of.sentence for name, arm in arms.items() for of in arm.judgements.parities},
        time_to_loss=[reached, replace(reached, num_reached=0, speedup=None)],
    )
    golden("verdicts.md", text)
