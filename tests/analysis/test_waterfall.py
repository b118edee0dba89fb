from synthetic_records import sweep, workload

from ampsweep.analysis.pairing import pair_runs
from ampsweep.analysis.runs import Run
from ampsweep.analysis.waterfall import waterfall

MIB = 2**20
FP32 = {"parameters": 100, "gradients": 100, "optimizer_state": 200, "activations": 500, "autocast_weights": 0}
BF16 = FP32 | {"activations": 300, "autocast_weights": 50}


def memory(categories, **changes):
    return {"peak": {key: MIB * value for key, value in ({**categories, "other": 0} | changes).items()}}


def of(entries):
    return waterfall(pair_runs([Run(*entry) for entry in entries], "fp32").pairs)


def runs(arm, categories, peak_mib):
    return sweep(arm, [1.0] * 3, memory=memory(categories), peak_mib=peak_mib)


def test_categories_add_up_to_the_difference_of_the_peaks():
    entries = runs("fp32", FP32, 901.25) + runs("amp_bf16", BF16, 755.5)
    found = of(entries)
    assert (found.baseline_bytes, found.arm_bytes) == (901.25 * MIB, 755.5 * MIB)
    assert sum(step.change_bytes for step in found.steps) == found.arm_bytes - found.baseline_bytes
    assert [(step.category, step.change_bytes / MIB) for step in found.steps] == [
        *((held, 0) for held in ("parameters", "gradients", "optimizer_state")),
        *(("activations", -200), ("autocast_weights", 50), ("unattributed", 5.5 - 1.25)),
    ]
    assert found.sentence == "activations -200 MiB, autocast weights +50.0 MiB, unattributed +4.25 MiB"
    compared = workload(entries)
    assert compared.verdict.arms[0].waterfall == found
    assert compared.arms[1].memory_saved_bytes.value == found.baseline_bytes - found.arm_bytes
    found = of(runs("fp32", FP32, None) + runs("amp_bf16", BF16, None))
    assert found.baseline_bytes == 900 * MIB
    assert [step.category for step in found.steps] == [*FP32], "nothing unattributed, and none that hold nothing"
    assert of(runs("fp32", FP32, 900.0) + sweep("amp_bf16", [1.0] * 3)) is None


def test_the_waterfall_is_that_of_the_median_pair():
    entries = runs("fp32", FP32, [900.0, 901.0, 902.0]) + runs("amp_bf16", BF16, [755.0, 756.0, 757.0])
    assert of(entries).same_in_all_pairs, "each pair has as much more than the one before"
    held = {"memory": [memory(BF16, activations=mib) for mib in (390, 300, 310)], "peak_mib": [840.0, 750.0, 760.0]}
    found = of(runs("fp32", FP32, 900.0) + sweep("amp_bf16", [1.0] * 3, **held))
    assert (found.seed, found.same_in_all_pairs, found.arm_bytes) == (2, False, 760 * MIB)
