import pytest
from synthetic_records import LOST_BITS, arms, contaminated, disproved, failed, run, sweep

from ampsweep.analysis.comparison import ContaminationUnknown, compare
from ampsweep.analysis.run_findings import Contaminated, CutShort, Disproved, NotCompleted, Repeats
from ampsweep.record.sections import RankFigures

MIB = 2**20
UNKNOWN = {"contamination": {"verdict": "unknown", "reasons": ["nothing tells"]}}


def test_speed_memory_and_loss_are_compared_pair_by_pair():
    losses = [1.0, 2.0, 3.0]
    of_bf16 = {"val_loss": [loss + 0.02 for loss in losses], "peak_mib": [700.0, 710.0, 690.0], "skipped": [3, 0, 4]}
    entries = sweep("fp32", [150.0, 153.0, 147.0], val_loss=losses) + sweep("amp_bf16", [100.0, 101.0, 99.0], **of_bf16)
    entries += sweep("amp_fp16", [1500.0, 1540.0, 1460.0], peak_mib=1100.0) + sweep("tf32", [151.0, 149.0, 152.0])
    found = arms(entries)
    fp32, bf16, fp16 = found["fp32"], found["amp_bf16"], found["amp_fp16"]
    assert (bf16.speedup.value, bf16.speedup.n) == (pytest.approx(1.5, rel=0.01), 3)
    assert 1 < bf16.speedup.low <= bf16.speedup.value <= bf16.speedup.high
    assert bf16.step_ms == pytest.approx(100.0, rel=1e-3)
    assert (bf16.memory_saved_bytes.value, bf16.peak_memory_bytes) == (pytest.approx(300 * MIB), 700 * MIB)
    assert bf16.memory_saved_bytes.low < 300 * MIB < bf16.memory_saved_bytes.high
    assert (bf16.loss_gap.value, bf16.loss_gap_pct) == (pytest.approx(0.02), pytest.approx(1.0))
    assert (bf16.loss_gap.high or 0.02) - 0.02 < 1e-6, "the spread over seeds is not in the spread of the gap"
    assert (bf16.skipped_steps, fp32.skipped_steps) == (7, None)
    assert fp16.speedup.high < 0.2
    saved = fp16.memory_saved_bytes
    assert (saved.value, saved.exact, saved.interval, fp16.memory_saved_pct.value) == (-100 * MIB, True, None, -10.0)
    assert not found["tf32"].speedup.resolves(1.0)
    assert fp32.is_baseline
    assert (fp32.num_pairs, fp32.val_loss.sd) == (0, pytest.approx(1.0))
    assert fp32.step_ms == pytest.approx((150 * 153 * 147) ** (1 / 3))
    assert (fp32.speedup, fp32.memory_saved_bytes, fp32.loss_gap) == (None, None, None)


def test_arms_stand_in_canonical_order_with_the_baseline_first():
    labels = ["fp32", "tf32", "amp_bf16", "amp_bf16+cache_enabled=false", "amp_fp16", "pure_bf16", "mine"]
    assert list(arms([run(label) for label in reversed(labels)])) == labels
    assert next(iter(arms([run(label) for label in labels], baseline="amp_fp16"))) == "amp_fp16"


def test_a_lost_seed_lowers_n_and_takes_the_interval_away():
    entries = sweep("fp32", [10.0, 11.0, 12.0], val_loss=[2.0, 2.1, 2.9])
    entries += [*sweep("amp_fp16", [5.0, 5.6], val_loss=[2.1, 2.2]), failed("amp_fp16", 2, "diverged", "nan")]
    fp16 = arms(entries)["amp_fp16"]
    assert (fp16.num_runs, fp16.num_pairs, fp16.num_completed_pairs, fp16.num_expected_pairs) == (3, 2, 2, 3)
    assert (fp16.speedup.n, fp16.speedup.interval) == (2, None)
    assert fp16.statuses == {"completed": 2, "diverged": 1}
    assert fp16.notes == (NotCompleted(seeds=(2,), status="diverged", cause="nan"),)
    assert (fp16.loss_gap.value, fp16.val_loss.mean) == (pytest.approx(0.1), pytest.approx(2.15))
    assert fp16.loss_gap_pct == pytest.approx(100 * 0.1 / 2.05), "of the baseline's loss in these pairs"


def test_rows_have_the_figures_of_the_pairs_of_their_differences():
    slow = {"val_loss": [2.0, 2.1, 1.9, 9.0], "peak_mib": [100, 100, 100, 900]}
    entries = sweep("fp32", [100.0, 102.0, 98.0, 500.0], **slow)
    entries += sweep("amp_bf16", [50.0, 51.0, 49.0], val_loss=[2.01, 2.11, 1.91], peak_mib=80)
    found = arms([*entries, run("tf32", 7, step_ms=40.0, val_loss=2.5)])
    baseline, arm = found["fp32"], found["amp_bf16"]
    assert (baseline.val_loss.n, baseline.val_loss.mean) == (3, pytest.approx(2.0))
    assert baseline.step_ms / arm.step_ms == pytest.approx(arm.speedup.value)
    assert baseline.peak_memory_bytes - arm.peak_memory_bytes == pytest.approx(arm.memory_saved_bytes.value)
    assert arm.val_loss.mean - baseline.val_loss.mean == pytest.approx(arm.loss_gap.value)
    alone = found["tf32"]
    assert (alone.step_ms, alone.val_loss.mean, alone.speedup) == (40.0, 2.5, None), "without pairs its own"


def test_runs_cut_short_and_disproved_runs_lack_figures():
    short = sweep("amp_fp16", [100.0] * 3, cut_short="trainer.max_seconds=20 passed", val_loss=9.0)
    found = arms(sweep("fp32", [10.0, 11.0, 12.0]) + short)["amp_fp16"]
    assert (found.statuses, found.num_pairs, found.num_completed_pairs) == ({"cut short": 3}, 3, 0)
    assert (found.speedup.n, found.memory_saved_bytes.exact) == (3, True)
    assert (found.val_loss, found.loss_gap, found.loss_gap_pct) == (None, None, None)
    assert found.notes == (CutShort(seeds=(0, 1, 2), cause="trainer.max_seconds=20 passed"),)
    planted = [disproved("fp32", seed, step_ms=1.0, val_loss=9.0, skipped=5) for seed in (0, 1)]
    found = arms([*planted, run("fp32", 2, skipped=0), *sweep("amp_bf16", [50.0] * 3)])
    fp32, bf16 = found["fp32"], found["amp_bf16"]
    assert (fp32.step_ms, fp32.val_loss.mean, fp32.skipped_steps) == (100.0, 2.0, 0)
    assert fp32.statuses == {"completed": 1, "disproved": 2}
    assert fp32.notes == (Disproved(seeds=(0, 1), cause=LOST_BITS),)
    assert (bf16.num_pairs, bf16.num_expected_pairs, bf16.speedup.n) == (1, 3, 1)


def test_contaminated_runs_count_for_memory_and_loss_only():
    planted = contaminated("amp_bf16", 2, step_ms=900.0, peak_mib=700.0, val_loss=2.0)
    found = arms([*sweep("fp32", [100.0] * 3), *sweep("amp_bf16", [50.0] * 2, peak_mib=700.0), planted])["amp_bf16"]
    assert (found.num_pairs, found.num_completed_pairs, found.num_contaminated) == (3, 3, 1)
    assert (found.speedup.n, found.speedup.value, found.step_ms) == (2, 2.0, 50.0)
    assert (found.memory_saved_bytes.n, found.loss_gap.n, found.val_loss.n) == (3, 3, 3)
    assert found.statuses == {"completed": 3}
    assert found.notes == (Contaminated(seeds=(2,), cause="other processes kept 1.0 of 2 cores busy"),)
    found = arms([*(contaminated("fp32", seed) for seed in range(3)), *sweep("amp_bf16", [50.0] * 3)])
    assert (found["fp32"].step_ms, found["amp_bf16"].speedup, found["amp_bf16"].step_ms) == (None, None, 50.0)
    assert found["amp_bf16"].memory_saved_bytes.n == 3
    entries = [run("fp32", 0, **UNKNOWN), run("fp32", 1), run("amp_bf16", 1)]
    found = arms([*entries, run("amp_bf16", 0, **UNKNOWN), run("amp_bf16", 5, **UNKNOWN)])
    assert (found["amp_bf16"].num_unchecked, found["amp_bf16"].num_timed) == (2, 4)
    assert (found["fp32"].num_unchecked, found["fp32"].num_timed) == (1, 2)
    assert found["amp_bf16"].speedup.n == 2
    (note,) = compare(entries, baseline="fp32", margin_pct=1.0).notes
    assert note == ContaminationUnknown(num_runs=1, cause="nothing tells")


def test_repeats_of_a_seed_are_averaged_and_noted():
    entries = [run("fp32", step_ms=10.0), run("amp_bf16", step_ms=4.0, val_loss=2.0)]
    entries.append(run("amp_bf16", step_ms=6.0, val_loss=2.2, directory="again"))
    found = arms(entries)["amp_bf16"]
    assert (found.speedup.value, found.num_runs, found.num_pairs) == (pytest.approx(2.0), 2, 1)
    assert (found.val_loss.mean, found.val_loss.sd) == (pytest.approx(2.1), None), "a repeat is no second seed"
    assert found.notes == (Repeats(seed=0, num_runs=2),)
    old = [run(arm, 0, pair_key="old code", directory=f"old-{arm}") for arm in ("fp32", "amp_bf16")]
    found = arms([run("fp32", 0), run("amp_bf16", 0), *old])["amp_bf16"]
    assert (found.num_pairs, found.notes) == (2, ()), "a seed under two pair keys is no repeat"


def test_pairs_trained_on_different_devices_are_named():
    def places(*entries):
        notes = compare(entries, baseline="fp32", margin_pct=1.0).notes
        return [note.num_runs_of for note in notes if note.kind() == "several_machines"]

    def on(device, host="node1"):
        return {"facts": {"device": device}, "attempts": [{"host": host}]}

    def ranks(*devices):
        return {"ranks": [RankFigures(rank=n, host="node1", device=device) for n, device in enumerate(devices)]}

    entries = [run(arm, seed, **on("cuda:0")) for arm in ("fp32", "amp_bf16") for seed in range(3)]
    assert places(*entries) == []
    apart = [*entries[:4], *(run("amp_bf16", seed, **on("cuda:1")) for seed in (1, 2))]
    assert places(*apart) == [{"node1 cuda:0": 2, "node1 cuda:1": 2}]
    assert arms(apart)["amp_bf16"].num_completed_pairs == 3
    elsewhere = places(run("fp32", **on("cuda:0")), run("amp_bf16", **on("cuda:0", "node2")))
    assert elsewhere == [{"node1 cuda:0": 1, "node2 cuda:0": 1}]
    same = [run("fp32", **ranks("cuda:0", "cuda:1")), run("amp_bf16", **ranks("cuda:1", "cuda:0"))]
    assert places(*same) == []
    other = run("amp_bf16", **ranks("cuda:2", "cuda:1"))
    assert places(same[0], other) == [{"node1 cuda:0 and node1 cuda:1": 1, "node1 cuda:1 and node1 cuda:2": 1}]


def test_figures_that_were_not_measured_are_none_never_zero():
    broken = run("tf32", 0)
    broken[1].summary["val/loss"] = float("nan")
    found = arms([failed("fp32", 0, "oom"), run("amp_bf16", 0, step_ms=None, peak_mib=None, val_loss=None)])
    for arm in found.values():
        figures = (arm.step_ms, arm.speedup, arm.peak_memory_bytes, arm.memory_saved_bytes, arm.val_loss, arm.loss_gap)
        assert figures == (None,) * 6
    assert arms([run("fp32", 0), broken])["tf32"].loss_gap is None
    found = arms(sweep("fp32", [1.0] * 2, accuracy=[0.9, 0.92]) + sweep("tf32", [1.0] * 2))
    assert (found["fp32"].val_accuracy.mean, found["tf32"].val_accuracy) == (pytest.approx(0.91), None)


def test_the_penalty_of_autocast_is_of_an_arms_own_runs():
    def with_penalty(entry, penalty):
        entry[1].summary["val/autocast_penalty"] = penalty
        return entry

    penalties = [0.001, 0.003, -0.001, 0.002]
    amp = [with_penalty(run("amp_bf16", seed), penalty) for seed, penalty in enumerate(penalties)]
    cut = with_penalty(run("amp_bf16", 9, cut_short="trainer.max_seconds=1 passed"), 9.0)
    found = arms([*sweep("fp32", [1.0] * 3), *amp, cut, with_penalty(disproved("amp_fp16", 0), 5.0)])
    penalty = found["amp_bf16"].autocast_penalty
    assert (penalty.value, penalty.n) == (pytest.approx(0.00125), 4)
    half_width = 3.18245 * 0.00170783 / 2  # t(0.975, 3) and the sample standard deviation of the four
    assert penalty.interval == pytest.approx((0.00125 - half_width, 0.00125 + half_width), rel=1e-4)
    assert found["fp32"].autocast_penalty is found["amp_fp16"].autocast_penalty is None
