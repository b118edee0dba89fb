from synthetic_records import run, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.pairing import pair_runs
from ampsweep.analysis.runs import Run
from ampsweep.analysis.waterfall import waterfall

MIB = 2**20

FP32 = {
    "parameters": 100,
    "gradients": 100,
    "optimizer_state": 200,
    "activations": 500,
    "autocast_weights": 0,
    "other": 0,
}
BF16 = FP32 | {"activations": 300, "autocast_weights": 50}


def memory(categories, **changes):
    return {"peak": {key: MIB * value for key, value in (categories | changes).items()}}


def of(entries):
    return waterfall(pair_runs([Run(*entry) for entry in entries], "fp32").pairs)


def runs(arm, categories, peak_mib, **more):
    return sweep(arm, [1.0] * 3, memory=memory(categories), peak_mib=peak_mib, **more)


def test_categories_add_up_to_the_difference_of_the_peaks():
    found = of(runs("fp32", FP32, 901.25) + runs("amp_bf16", BF16, 755.5))
    assert (found.baseline_bytes, found.arm_bytes) == (901.25 * MIB, 755.5 * MIB)
    assert sum(step.change_bytes for step in found.steps) == found.arm_bytes - found.baseline_bytes
    changes = {step.category: step.change_bytes / MIB for step in found.steps}
    assert changes["activations"] == -200
    assert changes["autocast_weights"] == 50
    assert changes["unattributed"] == 5.5 - 1.25
    assert found.steps[-1].category == "unattributed"
    assert found.same_in_all_pairs


def test_the_peaks_are_those_of_the_comparison():
    (workload,) = compare(
        runs("fp32", FP32, 901.25) + runs("amp_bf16", BF16, 755.5), baseline="fp32", margin_pct=1.0
    ).workloads
    found = workload.verdict.arms[0].waterfall
    assert found.baseline_bytes - found.arm_bytes == workload.arms[1].memory_saved_bytes.value


def test_without_a_measured_peak_the_traced_one_counts():
    found = of(runs("fp32", FP32, None) + runs("amp_bf16", BF16, None))
    assert found.baseline_bytes == 900 * MIB
    assert "unattributed" not in {step.category for step in found.steps}


def test_categories_that_hold_nothing_in_either_arm_are_left_out():
    found = of(runs("fp32", FP32, None) + runs("amp_bf16", BF16, None))
    assert [step.category for step in found.steps] == [
        "parameters",
        "gradients",
        "optimizer_state",
        "activations",
        "autocast_weights",
    ]


def test_pairs_with_the_same_changes_do_not_differ():
    """Both runs of a pair may hold more than those of another: nothing of that is saved or added."""
    entries = [run("fp32", seed, memory=memory(FP32), peak_mib=900.0 + seed) for seed in range(3)]
    entries += [run("amp_bf16", seed, memory=memory(BF16), peak_mib=755.0 + seed) for seed in range(3)]
    assert of(entries).same_in_all_pairs


def test_where_pairs_differ_it_is_that_of_the_median_change():
    entries = [run("fp32", seed, memory=memory(FP32), peak_mib=900.0) for seed in range(3)]
    entries += [
        run("amp_bf16", seed, memory=memory(BF16, activations=held), peak_mib=450.0 + held)
        for seed, held in enumerate([390, 300, 310])
    ]
    found = of(entries)
    assert (found.seed, found.same_in_all_pairs) == (2, False)
    assert found.arm_bytes == 760 * MIB


def test_without_categories_in_both_arms_there_is_none():
    assert of(runs("fp32", FP32, 900.0) + sweep("amp_bf16", [1.0] * 3)) is None
