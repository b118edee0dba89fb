"""Why an arm gains what it gains (`golden/reasons.md`), and where the memory goes."""

import pytest
import torch
from synthetic_records import document, figures, run, sweep, workload

from ampsweep.analysis.pairing import pair_runs
from ampsweep.analysis.reasons import find_pitfalls
from ampsweep.analysis.runs import Run
from ampsweep.analysis.waterfall import waterfall
from ampsweep.config.modes import MODES

MIB = 2**20
FP32 = {"parameters": 100, "gradients": 100, "optimizer_state": 200, "activations": 500, "autocast_weights": 0}
BF16 = FP32 | {"activations": 300, "autocast_weights": 50}


def on_gpu(arm, summary=None, facts=(), **more):
    of = {"device": "cuda", "device_name": "a GPU", "dtype": "float32" if arm == "fp32" else "bfloat16"} | dict(facts)
    return run(arm, num_operators=None, facts=of, summary=summary, **more)


def sized(facts=(), **model):
    return [on_gpu(arm, config={"model": model}, facts=facts) for arm in ("fp32", "amp_bf16")]


def under_autocast(**more):
    precision = {"mode": "amp_bf16", "autocast": True, "parameters": "float32", "dtype": "bfloat16"}
    return run("amp_bf16", facts={"dtype": "bfloat16"}, config={"precision": precision}, **more)


def memory(**mib):
    return {"memory": {"peak": {category: MIB * size for category, size in mib.items()}}}


GPT = {"hidden_size": 768, "num_heads": 12, "name": "gpt"}
CASES = {
    "no peak FLOPS": [on_gpu("fp32"), on_gpu("amp_bf16")],
    "7% of the peak FLOPS": [on_gpu("fp32", {"perf/mfu_pct": 7.0}), on_gpu("amp_bf16")],
    "60% of the peak FLOPS": [on_gpu("fp32", {"perf/mfu_pct": 60.0}), on_gpu("amp_bf16")],
    "an odd vocabulary": sized(vocab_size=50257, **GPT),
    "a vocabulary of whole eights": sized(vocab_size=50304, **GPT),
    "odd heads and rows": sized({"batch_size": 3, "seq_len": 7}, hidden_size=72, num_heads=6),
    "odd, without tensor cores": sized({"device": "cpu"}, vocab_size=50257),
    "30% in float32": [run("fp32"), under_autocast(proof={"flops": {"bfloat16": 700, "float32": 300}})],
    "1% in float32": [run("fp32"), under_autocast(proof={"flops": {"bfloat16": 990, "float32": 10}})],
    "float32 in its own mode": [run("fp32", proof={"flops": {"float32": 9}}), run("tf32")],
    "20 of 200 steps skipped": [on_gpu("fp32"), on_gpu("amp_fp16", {"amp/applied_steps": 180}, skipped=20)],
    "1 of 1000 steps skipped": [on_gpu("fp32"), on_gpu("amp_fp16", {"amp/applied_steps": 999}, skipped=1)],
    "copies of weights": [
        run("fp32", **memory(parameters=60, activations=40)),
        under_autocast(**memory(parameters=60, activations=25, autocast_weights=30)),
    ],
    "few activations": [
        run("fp32", **memory(parameters=90, activations=10), peak_mib=100.0),
        under_autocast(**memory(parameters=90, activations=5), peak_mib=95.0),
    ],
}


def test_the_reasons_of_figures(golden):
    reasons = {name: workload(entries).verdict.reasons for name, entries in CASES.items()}
    of_cases = {
        name: " | ".join(f"{one.kind()}: {one.sentence} ({figures(one)})" for one in found)
        for name, found in reasons.items()
    }
    golden("reasons.md", document(reasons=of_cases))


def pitfalls(arm, parameters="bfloat16", state=None, beta2=0.999):
    dtypes = {"compute": "bfloat16", "parameters": parameters, "optimizer_state": state or parameters}
    of = run(arm, dtypes=dtypes, config={"optimizer": {"beta2": beta2}})
    return {one.kind(): one for one in find_pitfalls({arm: [Run(*of)]})}


def test_updates_vanish_unless_the_mode_makes_its_own():
    assert pitfalls("fp32", parameters="float32") == pitfalls("amp_bf16", parameters="float32") == {}
    assert find_pitfalls({"pure_bf16": [Run(*run("pure_bf16"))]}) == (), "a record without dtypes"
    found = pitfalls("pure_bf16")["vanishing_updates"]
    assert found.arms == ("pure_bf16",)
    weights = torch.linspace(1, 2, 129, dtype=torch.bfloat16)
    for sign in (1, -1):
        assert torch.equal(weights + sign * 0.999 * found.lost_below * weights, weights), "it is so"
    assert [name for name, mode in MODES.items() if mode.implementation is not None and pitfalls(name)] == []


@pytest.mark.parametrize(("beta2", "is_stuck"), [(0.999, True), (0.99, False)])
def test_a_second_moment_in_bfloat16_cannot_fall(beta2, is_stuck):
    assert ("stuck_moment" in pitfalls("pure_bf16", beta2=beta2)) == is_stuck
    assert "stuck_moment" not in pitfalls("pure_bf16", beta2=beta2, state="float32")
    moment = torch.tensor(0.7, dtype=torch.bfloat16)
    assert torch.equal((moment.float() * beta2).bfloat16(), moment) == is_stuck, "it is so"
    narrow = pitfalls("amp_bf16+state_dtype=bfloat16", parameters="float32", state="bfloat16", beta2=beta2)
    assert set(narrow) == ({"stuck_moment"} if is_stuck else set())


def waterfall_of(entries):
    return waterfall(pair_runs([Run(*entry) for entry in entries], "fp32")[0])


def runs(arm, categories, peak_mib):
    return sweep(arm, [1.0] * 3, **memory(**categories, other=0), peak_mib=peak_mib)


def test_categories_add_up_to_the_difference_of_the_peaks():
    entries = runs("fp32", FP32, 901.25) + runs("amp_bf16", BF16, 755.5)
    found = waterfall_of(entries)
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
    found = waterfall_of(runs("fp32", FP32, None) + runs("amp_bf16", BF16, None))
    assert found.baseline_bytes == 900 * MIB
    assert [step.category for step in found.steps] == [*FP32], "nothing unattributed, and none that hold nothing"
    assert waterfall_of(runs("fp32", FP32, 900.0) + sweep("amp_bf16", [1.0] * 3)) is None


def test_the_waterfall_is_that_of_the_median_pair():
    entries = runs("fp32", FP32, [900.0, 901.0, 902.0]) + runs("amp_bf16", BF16, [755.0, 756.0, 757.0])
    assert waterfall_of(entries).same_in_all_pairs, "each pair has as much more than the one before"
    sizes = ((390, 840.0), (300, 750.0), (310, 760.0))
    held = [memory(**BF16 | {"activations": mib}) | {"peak_mib": peak_mib} for mib, peak_mib in sizes]
    half = [run("amp_bf16", seed, **of) for seed, of in enumerate(held)]
    found = waterfall_of(runs("fp32", FP32, 900.0) + half)
    assert (found.seed, found.same_in_all_pairs, found.arm_bytes) == (2, False, 760 * MIB)
