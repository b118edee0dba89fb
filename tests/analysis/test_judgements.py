"""The words on an arm's speed, memory and learning."""

import pytest
from synthetic_records import contaminated, failed, run, sweep

from ampsweep.analysis.comparison import compare

LOSSES = [2.00, 2.02, 1.98]
FP32 = sweep("fp32", [150.0, 153.0, 147.0], val_loss=LOSSES)


def verdict(entries, margin_pct=1.0):
    (workload,) = compare(entries, baseline="fp32", margin_pct=margin_pct).workloads
    (arm,) = workload.verdict.arms
    return arm


def judgements(entries, **options):
    return verdict(entries, **options).judgements


@pytest.mark.parametrize(
    ("times", "word"),
    [
        ([100.0, 101.0, 99.0], "faster"),
        ([1500.0, 1540.0, 1460.0], "slower"),
        ([151.0, 149.0, 150.0], "unresolved"),
        ([150.0, 153.0, 147.0], "same"),
        ([100.0, 101.0], "too few pairs"),
    ],
)
def test_the_word_on_speed(times, word):
    assert judgements(FP32 + sweep("amp_bf16", times)).speed == word


def test_swapping_the_arms_swaps_the_winner():
    fast, slow = [100.0, 101.0, 99.0], [200.0, 203.0, 197.0]
    assert judgements(sweep("fp32", slow) + sweep("amp_bf16", fast)).figures.speedup.value == pytest.approx(
        2.0, rel=1e-3
    )
    assert judgements(sweep("fp32", fast) + sweep("amp_bf16", slow)).figures.speedup.value == pytest.approx(
        0.5, rel=1e-3
    )


@pytest.mark.parametrize(
    ("peak_mib", "word"),
    [
        (600.0, "saves"),
        (1250.0, "adds"),
        (1000.0, "same"),
        ([1001.0, 999.0, 1000.5], "unresolved"),
        (None, "not measured"),
    ],
)
def test_the_word_on_memory(peak_mib, word):
    assert judgements(FP32 + sweep("tf32", [100.0] * 3, peak_mib=peak_mib)).memory == word


def test_memory_of_a_single_pair_has_no_word():
    assert judgements([run("fp32"), run("tf32", peak_mib=600.0)]).memory == "too few pairs"


@pytest.mark.parametrize(
    ("gaps", "margin_pct", "word"),
    [
        ([0.001, 0.0012, 0.0011], 1.0, "equivalent"),
        ([0.021, 0.022, 0.023], 1.0, "worse"),
        ([-0.021, -0.022, -0.023], 1.0, "better"),
        ([-0.03, 0.04, 0.01], 1.0, "inconclusive"),
        ([0.1, 0.11, 0.12], 20.0, "equivalent"),
    ],
)
def test_the_word_on_parity(gaps, margin_pct, word):
    losses = [base + gap for base, gap in zip(LOSSES, gaps, strict=True)]
    judged = judgements(FP32 + sweep("amp_bf16", [100.0] * 3, val_loss=losses), margin_pct=margin_pct)
    assert (judged.parity, len(judged.parities)) == (word, 1)


def test_without_a_loss_parity_is_not_measured():
    entries = sweep("fp32", [1.0] * 3, val_loss=None) + sweep("tf32", [1.0] * 3, val_loss=None)
    assert judgements(entries).parity == "not measured"


def test_contaminated_runs_are_out_of_speed_and_counted():
    planted = contaminated("amp_bf16", 3, step_ms=900.0, peak_mib=600.0)
    bf16 = sweep("amp_bf16", [100.0, 101.0, 99.0], peak_mib=600.0)
    judged = judgements([*FP32, run("fp32", 3), *bf16, planted])
    assert judged.figures.speedup.value == pytest.approx(1.5, rel=0.01)
    assert (judged.figures.speedup.n, judged.figures.memory_saved_bytes.n, judged.figures.num_completed_pairs) == (
        3,
        4,
        4,
    )
    assert judged.contaminated == (("amp_bf16", 1),)


def test_where_all_runs_are_contaminated_speed_is_unknown():
    judged = judgements([*FP32, *(contaminated("amp_bf16", seed, peak_mib=600.0) for seed in range(3))])
    assert (judged.speed, judged.memory, judged.contaminated) == ("not measured", "saves", (("amp_bf16", 3),))


def test_an_arm_with_three_pairs_is_not_short_of_any():
    assert verdict(FP32 + sweep("amp_bf16", [100.0] * 3)).too_few_pairs is None


def test_an_arm_short_of_pairs_says_what_is_missing():
    lost = failed("amp_fp16", 2, "diverged", "loss is nan")
    missing = verdict([*FP32, *sweep("amp_fp16", [50.0, 51.0]), lost]).too_few_pairs
    assert (missing.num_completed, missing.num_expected, missing.unsupported) == (2, 3, False)
    assert missing.failures == {"diverged": 1}


def test_runs_cut_short_complete_no_pair_but_have_a_speed():
    short = sweep("amp_fp16", [1500.0, 1540.0, 1460.0], cut_short="trainer.max_seconds=20 passed")
    found = verdict(FP32 + short)
    assert found.too_few_pairs.failures == {"cut short": 3}
    assert (found.judgements.speed, found.judgements.parities) == ("slower", ())


def test_other_code_has_no_partner():
    other = sweep("amp_bf16", [1.0] * 3, environment={"commit": "b"}, pair_key=["x", "y", "z"])
    missing = verdict(FP32 + other).too_few_pairs
    assert (missing.num_completed, missing.failures) == (0, {})


def test_an_unsupported_arm_is_named_as_that():
    refused = [failed("tf32", seed, "unsupported", "no TF32 here") for seed in range(3)]
    assert verdict(FP32 + refused).too_few_pairs.unsupported
