from pathlib import Path

import pytest
from synthetic_records import LOST_BITS, contaminated, disproved, failed, run, sweep

from ampsweep.analysis.comparison import ContaminationUnknown, GivenTwice, OtherMargin, Predicted, compare
from ampsweep.analysis.run_findings import (
    Contaminated,
    CutShort,
    Disproved,
    NotCompleted,
    Repeats,
)
from ampsweep.finding import as_data
from ampsweep.record.parts import RankFigures

MIB = 2**20


def arms(entries, **options):
    (workload,) = compare(entries, **({"baseline": "fp32", "margin_pct": 1.0} | options)).workloads
    return {arm.arm: arm for arm in workload.arms}


def test_a_planted_speedup_is_found_with_its_interval():
    found = arms(sweep("fp32", [150.0, 153.0, 147.0]) + sweep("amp_bf16", [100.0, 101.0, 99.0]))["amp_bf16"]
    assert found.speedup.value == pytest.approx(1.5, rel=0.01)
    assert found.speedup.n == 3
    assert 1 < found.speedup.low <= found.speedup.value <= found.speedup.high
    assert found.step_ms == pytest.approx(100.0, rel=1e-3)


def test_a_slower_arm_is_slower_and_added_memory_is_negative():
    found = arms(sweep("fp32", [10.0, 11.0, 12.0]) + sweep("amp_fp16", [100.0, 111.0, 119.0], peak_mib=1100.0))
    slow = found["amp_fp16"]
    assert slow.speedup.high < 0.2
    assert slow.memory_saved_bytes.value == -100 * MIB
    assert slow.memory_saved_bytes.exact
    assert slow.memory_saved_bytes.interval is None
    assert slow.memory_saved_pct.value == -10.0


def test_memory_that_differs_between_seeds_has_an_interval():
    found = arms(sweep("fp32", [10.0] * 3) + sweep("amp_bf16", [9.0] * 3, peak_mib=[700.0, 710.0, 690.0]))["amp_bf16"]
    assert found.memory_saved_bytes.value == pytest.approx(300 * MIB)
    assert found.memory_saved_bytes.low < 300 * MIB < found.memory_saved_bytes.high
    assert found.peak_memory_bytes == 700 * MIB


def test_no_effect_is_not_resolved():
    found = arms(sweep("fp32", [100.0, 103.0, 98.0]) + sweep("tf32", [101.0, 99.0, 101.0]))["tf32"]
    assert not found.speedup.resolves(1.0)


def test_the_loss_gap_is_paired_by_seed():
    losses = [1.0, 2.0, 3.0]
    found = arms(
        sweep("fp32", [1.0] * 3, val_loss=losses) + sweep("amp_bf16", [1.0] * 3, val_loss=[x + 0.02 for x in losses])
    )
    assert found["amp_bf16"].loss_gap.value == pytest.approx(0.02)
    assert found["amp_bf16"].loss_gap_pct == pytest.approx(1.0)
    assert found["fp32"].val_loss.sd == pytest.approx(1.0)
    half_width = (found["amp_bf16"].loss_gap.high or 0.02) - 0.02
    assert half_width < 1e-6, "the spread over seeds is not in the spread of the gap"


def test_the_baseline_has_figures_but_is_compared_with_nothing():
    baseline = arms(sweep("fp32", [10.0, 11.0, 12.0]) + sweep("tf32", [10.0, 11.0, 12.0]))["fp32"]
    assert baseline.is_baseline
    assert baseline.step_ms == pytest.approx(1320 ** (1 / 3))
    assert (baseline.speedup, baseline.memory_saved_bytes, baseline.loss_gap) == (None, None, None)
    assert baseline.num_pairs == 0


def test_arms_stand_in_canonical_order_with_the_baseline_first():
    labels = ["fp32", "tf32", "amp_bf16", "amp_bf16+cache_enabled=false", "amp_fp16", "pure_bf16", "mine"]
    assert list(arms([run(label) for label in reversed(labels)])) == labels
    assert next(iter(arms([run(label) for label in labels], baseline="amp_fp16"))) == "amp_fp16"


def test_missing_pairs_lower_n_and_take_the_interval_away():
    found = arms(
        sweep("fp32", [10.0, 11.0, 12.0]) + sweep("amp_fp16", [5.0, 5.6]) + [failed("amp_fp16", 2, "diverged", "nan")]
    )["amp_fp16"]
    assert (found.num_runs, found.num_pairs, found.num_completed_pairs, found.num_expected_pairs) == (3, 2, 2, 3)
    assert found.speedup.n == 2
    assert found.speedup.interval is None
    assert found.statuses == {"completed": 2, "diverged": 1}
    assert found.notes == (NotCompleted(seeds=(2,), status="diverged", cause="nan"),)


def test_a_run_cut_short_counts_for_speed_and_memory_alone():
    short = sweep("amp_fp16", [100.0] * 3, cut_short="trainer.max_seconds=20 passed", val_loss=9.0)
    found = arms(sweep("fp32", [10.0, 11.0, 12.0]) + short)["amp_fp16"]
    assert found.statuses == {"cut short": 3}
    assert (found.num_pairs, found.num_completed_pairs) == (3, 0)
    assert found.speedup.n == 3
    assert found.memory_saved_bytes.exact
    assert (found.val_loss, found.loss_gap, found.loss_gap_pct) == (None, None, None)
    assert found.notes == (CutShort(seeds=(0, 1, 2), cause="trainer.max_seconds=20 passed"),)


def test_a_disproved_run_has_no_figure_in_its_arm_but_a_note():
    planted = [disproved("fp32", seed, step_ms=1.0, val_loss=9.0, skipped=5) for seed in (0, 1)]
    found = arms([*planted, run("fp32", 2, skipped=0), *sweep("amp_bf16", [50.0] * 3)])
    fp32, bf16 = found["fp32"], found["amp_bf16"]
    assert (fp32.step_ms, fp32.val_loss.mean, fp32.skipped_steps) == (100.0, 2.0, 0)
    assert fp32.statuses == {"completed": 1, "disproved": 2}
    assert fp32.notes == (Disproved(seeds=(0, 1), cause=LOST_BITS),)
    assert (bf16.num_pairs, bf16.num_expected_pairs, bf16.speedup.n) == (1, 3, 1)


def test_a_contaminated_run_counts_for_memory_and_loss_only():
    planted = contaminated("amp_bf16", 2, step_ms=900.0, peak_mib=700.0, val_loss=2.0)
    found = arms([*sweep("fp32", [100.0] * 3), *sweep("amp_bf16", [50.0] * 2, peak_mib=700.0), planted])["amp_bf16"]
    assert (found.num_pairs, found.num_completed_pairs, found.num_contaminated) == (3, 3, 1)
    assert (found.speedup.n, found.speedup.value, found.step_ms) == (2, 2.0, 50.0)
    assert (found.memory_saved_bytes.n, found.loss_gap.n, found.val_loss.n) == (3, 3, 3)
    assert found.statuses == {"completed": 3}
    cause = "other processes kept 1.0 of 2 cores busy"
    assert found.notes == (Contaminated(seeds=(2,), cause=cause),)


def test_a_contaminated_baseline_takes_the_speed_of_its_partner():
    found = arms([*(contaminated("fp32", seed) for seed in range(3)), *sweep("amp_bf16", [50.0] * 3)])
    assert found["fp32"].step_ms is None
    assert (found["amp_bf16"].speedup, found["amp_bf16"].step_ms) == (None, 50.0)
    assert found["amp_bf16"].memory_saved_bytes.n == 3


def test_unknown_contamination_is_noted_once_and_changes_nothing():
    unknown = {"verdict": "unknown", "reasons": ["nothing tells"]}
    entries = sweep("fp32", [10.0] * 3, contamination=unknown) + sweep("amp_bf16", [5.0] * 3, contamination=unknown)
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    assert comparison.notes == (ContaminationUnknown(num_runs=6, cause="nothing tells"),)
    assert comparison.workloads[0].arms[1].speedup.n == 3


def test_repeats_are_averaged_and_said_to_be_repeats():
    again = [run("amp_bf16", 0, step_ms=6.0, val_loss=2.2, directory="again")]
    found = arms([run("fp32", 0, step_ms=10.0), run("amp_bf16", 0, step_ms=4.0, val_loss=2.0), *again])["amp_bf16"]
    assert found.speedup.value == pytest.approx(2.0)
    assert (found.num_runs, found.num_pairs) == (2, 1)
    assert found.val_loss.mean == pytest.approx(2.1)
    assert found.val_loss.sd is None, "a repeat is no second seed"
    assert found.notes == (Repeats(seed=0, num_runs=2),)


def test_a_seed_under_several_pair_keys_makes_a_pair_of_each():
    old = [run(arm, 0, pair_key="old code", directory=f"old-{arm}") for arm in ("fp32", "amp_bf16")]
    found = arms([run("fp32", 0), run("amp_bf16", 0), *old])["amp_bf16"]
    assert found.num_pairs == 2
    assert found.notes == ()


def on(device, host="node1"):
    return {"facts": {"device": device}, "attempts": [{"host": host}]}


def places(*entries):
    notes = compare(entries, baseline="fp32", margin_pct=1.0).notes
    return [note.num_runs_of for note in notes if note.kind() == "several_machines"]


def test_pairs_whose_runs_had_different_devices_are_told():
    entries = [run(arm, seed, **on("cuda:0")) for arm in ("fp32", "amp_bf16") for seed in range(3)]
    assert places(*entries) == []
    apart = [*entries[:4], *(run("amp_bf16", seed, **on("cuda:1")) for seed in (1, 2))]
    assert places(*apart) == [{"node1 cuda:0": 2, "node1 cuda:1": 2}]
    assert arms(apart)["amp_bf16"].num_completed_pairs == 3


def test_the_same_device_of_another_machine_is_another():
    found = places(run("fp32", **on("cuda:0")), run("amp_bf16", **on("cuda:0", "node2")))
    assert found == [{"node1 cuda:0": 1, "node2 cuda:0": 1}]


def test_ranks_on_the_same_devices_are_in_one_place():
    def ranks(*devices):
        return {"ranks": [RankFigures(rank=n, host="node1", device=device) for n, device in enumerate(devices)]}

    same = [run("fp32", **ranks("cuda:0", "cuda:1")), run("amp_bf16", **ranks("cuda:1", "cuda:0"))]
    assert places(*same) == []
    other = run("amp_bf16", **ranks("cuda:2", "cuda:1"))
    assert places(same[0], other) == [{"node1 cuda:0 and node1 cuda:1": 1, "node1 cuda:1 and node1 cuda:2": 1}]


def test_skipped_steps_are_the_total_over_runs_or_absent():
    found = arms(sweep("fp32", [1.0] * 3) + sweep("amp_fp16", [1.0] * 3, skipped=[3, 0, 4]))
    assert found["amp_fp16"].skipped_steps == 7
    assert found["fp32"].skipped_steps is None


def test_what_was_not_measured_is_none_never_zero():
    found = arms([failed("fp32", 0, "oom"), run("amp_bf16", 0, step_ms=None, peak_mib=None, val_loss=None)])
    for arm in found.values():
        figures = (arm.step_ms, arm.speedup, arm.peak_memory_bytes, arm.memory_saved_bytes, arm.val_loss, arm.loss_gap)
        assert figures == (None,) * 6


def test_a_figure_that_is_not_finite_is_left_out():
    broken = run("amp_bf16", 0)
    broken[1].summary["val/loss"] = float("nan")
    found = arms([run("fp32", 0), broken])["amp_bf16"]
    assert found.loss_gap is None


def test_accuracy_is_compared_where_there_is_one():
    found = arms(sweep("fp32", [1.0] * 2, accuracy=[0.9, 0.92]) + sweep("tf32", [1.0] * 2))
    assert found["fp32"].val_accuracy.mean == pytest.approx(0.91)
    assert found["tf32"].val_accuracy is None


def with_penalty(entry, penalty):
    entry[1].summary["val/autocast_penalty"] = penalty
    return entry


def test_the_penalty_of_autocast_is_of_an_arms_own_runs():
    penalties = [0.001, 0.003, -0.001, 0.002]
    amp = [with_penalty(run("amp_bf16", seed), penalty) for seed, penalty in enumerate(penalties)]
    cut = with_penalty(run("amp_bf16", 9, cut_short="trainer.max_seconds=1 passed"), 9.0)
    found = arms([*sweep("fp32", [1.0] * 3), *amp, cut, with_penalty(disproved("amp_fp16", 0), 5.0)])
    penalty = found["amp_bf16"].autocast_penalty
    assert (penalty.value, penalty.n) == (pytest.approx(0.00125), 4)
    half_width = 3.18245 * 0.00170783 / 2  # t(0.975, 3) and the sample standard deviation of the four
    assert penalty.interval == pytest.approx((0.00125 - half_width, 0.00125 + half_width), rel=1e-4)
    assert found["fp32"].autocast_penalty is None
    assert found["amp_fp16"].autocast_penalty is None


def test_models_are_compared_each_with_its_own_baseline():
    entries = [
        entry
        for model, factor in (("small", 1.0), ("large", 4.0))
        for arm, time in (("fp32", 8.0), ("amp_bf16", 8.0 / factor))
        for entry in sweep(arm, [time] * 3, facts={"model": model})
    ]
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    assert [(workload.title, workload.arms[1].speedup.value) for workload in comparison.workloads] == [
        ("model large", pytest.approx(4.0)),
        ("model small", pytest.approx(1.0)),
    ]


def test_every_run_is_listed_with_its_place_and_why_unpaired():
    entries = [run("fp32", 0, wandb={"url": "https://wandb.ai/x"}), failed("tf32", 0, "unsupported", "no GPU.\nmore")]
    entries += [run("amp_bf16", 0, wandb={"mode": "offline", "directory": "wandb/offline-1"}, cut_short="time")]
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    fp32, tf32, bf16 = workload.runs
    assert (fp32.tracked_at, bf16.tracked_at, tf32.tracked_at) == ("https://wandb.ai/x", "wandb/offline-1", None)
    assert (fp32.not_paired, bf16.not_paired) == (None, None)
    assert (tf32.not_paired, tf32.error) == (None, "no GPU")
    assert tf32.findings == (NotCompleted(seeds=(0,), status="unsupported", cause="no GPU"),)
    assert [entry.status for entry in workload.runs] == ["completed", "unsupported", "cut short"]


def test_runs_that_do_not_count_are_listed_with_their_reason():
    entries = [disproved("fp32", 0), contaminated("tf32", 0), run("amp_bf16", 0)]
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    listed = {
        entry.arm: (entry.status, entry.not_paired and entry.not_paired.kind(), entry.contaminated)
        for entry in workload.runs
    }
    assert listed == {
        "fp32": ("disproved", None, None),
        "tf32": ("completed", "baseline_without_figures", "other processes kept 1.0 of 2 cores busy"),
        "amp_bf16": ("completed", "baseline_without_figures", None),
    }


def test_duplicates_count_once_and_predictions_do_not_count():
    entries = [run("fp32", 0), run("fp32", 0), run("amp_bf16", 0), run("amp_bf16", 1, kind="predicted")]
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    assert [entry.arm for entry in comparison.workloads[0].runs] == ["fp32", "amp_bf16"]
    assert comparison.notes == (
        GivenTwice(num_runs=1),
        Predicted(num_runs=1),
    )


def test_a_margin_chosen_after_the_runs_is_said_to_be_that():
    entries = [run("fp32", config={"report": {"margin_pct": 1.0}}), run("tf32", config={"report": {"margin_pct": 1.0}})]
    assert compare(entries, baseline="fp32", margin_pct=1.0).notes == ()
    assert compare(entries, baseline="fp32", margin_pct=5.0).notes == (
        OtherMargin(margin_pct=5.0, recorded_margin_pct=1.0),
    )


def test_directories_are_told_from_where_the_comparison_lies():
    comparison = compare([run("fp32", 0)], baseline="fp32", margin_pct=1.0)
    assert comparison.relative_to(Path("runs")).workloads[0].runs[0].directory == "fp32-gpt_tiny-8-s0"
    assert Path(comparison.relative_to(Path("elsewhere")).workloads[0].runs[0].directory).is_absolute()


def test_runs_and_pairs_behind_a_comparison_are_no_data_of_it():
    comparison = compare(sweep("fp32", [1.0]) + sweep("tf32", [1.0]), baseline="fp32", margin_pct=1.0)
    (workload,) = comparison.workloads
    assert [entry.run.arm for entry in workload.runs] == ["fp32", "tf32"]
    (found,) = as_data(comparison)["workloads"]
    assert "run" not in found["runs"][0]
    assert "pairs" not in found["verdict"]["arms"][0]


def test_no_runs_make_an_empty_comparison():
    assert compare([], baseline="fp32", margin_pct=1.0).workloads == ()


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan")])
def test_a_margin_that_is_no_margin_is_refused(margin):
    with pytest.raises(ValueError, match=r"report\.margin_pct is .*; it must be above 0"):
        compare([], baseline="fp32", margin_pct=margin)


def test_an_arm_without_a_speed_says_why_unless_others_ran():
    entries = [
        run("fp32", 0, step_ms=10.0),
        run("amp_bf16", 0, step_ms=None),
        contaminated("amp_bf16", 1, step_ms=None),
    ]
    for _, record in entries[1:]:
        record.absent["perf/step_ms"] = "the training ended before its warm-up was over"
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    notes = {note.kind(): note.seeds for note in workload.arms[1].notes if note.kind() != "not_paired"}
    assert notes == {"not_timed": (0,), "contaminated": (1,)}
