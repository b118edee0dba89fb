import pytest
from synthetic_records import contaminated, run, sweep

from ampsweep.analysis.comparison import compare

MIB = 2**20
AUTOCAST = {"precision": {"mode": "amp_bf16", "autocast": True, "parameters": "float32"}}
GPU = {"device": "cuda", "device_name": "a GPU", "dtype": "bfloat16"}


def reasons(entries):
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    return {(reason.arm, reason.kind): reason for reason in workload.verdict.reasons}


def with_summary(arm, seed=0, summary=None, **more):
    directory, record = run(arm, seed, num_operators=None, **more)
    record.summary |= summary or {}
    return directory, record


def on_gpu(arm, summary=None, **more):
    return with_summary(arm, summary=summary, facts=GPU | {"dtype": "float32" if arm == "fp32" else "bfloat16"}, **more)


def memory(**mib):
    return {"peak": {category: MIB * size for category, size in mib.items()}}


def test_facts_that_are_absent_give_no_reason():
    assert reasons(sweep("fp32", [100.0] * 3, num_operators=None) + sweep("amp_bf16", [50.0] * 3)) == {}


def test_too_small_a_workload_is_a_reason_of_all_of_it():
    found = reasons(sweep("fp32", [6.0] * 3) + sweep("amp_bf16", [5.0] * 3))
    small = found[None, "too_small"].small_step
    assert (small.num_operators, small.step_ms) == (400, 6.0)


def test_a_baseline_far_below_the_peak_does_little_arithmetic():
    found = reasons([on_gpu("fp32", {"perf/mfu_pct": 7.0}), on_gpu("amp_bf16")])
    assert found[None, "little_arithmetic"].evidence == {"perf/mfu_pct": 7.0}
    assert reasons([on_gpu("fp32", {"perf/mfu_pct": 60.0}), on_gpu("amp_bf16")]) == {}


def test_sizes_that_are_no_multiple_of_8_are_named_on_a_gpu():
    config = {"model": {"vocab_size": 50257, "hidden_size": 768, "num_heads": 12, "name": "gpt"}}
    found = reasons([on_gpu("fp32", config=config), on_gpu("amp_bf16", config=config)])
    assert found[None, "odd_sizes"].evidence == {"model.vocab_size": 50257}
    padded = {"model": {"vocab_size": 50304, "hidden_size": 768, "num_heads": 12, "name": "gpt"}}
    assert reasons([on_gpu("fp32", config=padded), on_gpu("amp_bf16", config=padded)]) == {}
    assert reasons([run("fp32", config=config), run("amp_bf16", config=config)]) == {}, "a CPU has no tensor cores"


def test_head_size_and_rows_of_a_batch_are_sizes_too():
    config = {"model": {"hidden_size": 72, "num_heads": 6}}
    odd = {"facts": GPU | {"batch_size": 3, "seq_len": 7}}
    entries = [with_summary(arm, config=config, **odd) for arm in ("fp32", "amp_bf16")]
    assert reasons(entries)[None, "odd_sizes"].evidence == {
        "model.hidden_size / model.num_heads": 12,
        "data.batch_size * data.seq_len": 21,
    }


def test_arithmetic_that_stayed_in_float32_is_a_reason():
    def half(**flops):
        return run("amp_bf16", proof={"flops": flops}, facts={"dtype": "bfloat16"})

    found = reasons([run("fp32"), half(bfloat16=700, float32=300)])
    assert found["amp_bf16", "float32_arithmetic"].evidence == {"bfloat16": 700, "float32": 300}
    assert ("amp_bf16", "float32_arithmetic") not in reasons([run("fp32"), half(bfloat16=990, float32=10)])
    assert reasons([run("fp32", proof={"flops": {"float32": 9}}), run("tf32")]) == {}


def test_a_cast_cache_that_outgrows_the_savings_is_told():
    entries = [
        run("fp32", memory=memory(parameters=60, activations=40)),
        run("amp_bf16", memory=memory(parameters=60, activations=25, autocast_weights=30), config=AUTOCAST),
    ]
    found = reasons(entries)["amp_bf16", "cast_cache"]
    assert found.evidence == {"autocast_weights_bytes": 30 * MIB, "activations_saved_bytes": 15 * MIB}


def test_a_peak_of_few_activations_is_a_reason():
    entries = [
        run("fp32", memory=memory(parameters=90, activations=10), peak_mib=100.0),
        run("amp_bf16", memory=memory(parameters=90, activations=5), peak_mib=95.0, config=AUTOCAST),
    ]
    evidence = reasons(entries)["amp_bf16", "few_activations"].evidence
    assert evidence == {"activations_bytes": 10 * MIB, "peak_bytes": 100 * MIB}


@pytest.mark.parametrize(("waited_ms", "told"), [(30.0, True), (5.0, False)])
def test_waiting_for_data_is_told_with_its_share(waited_ms, told):
    found = reasons([run("fp32"), with_summary("amp_bf16", summary={"perf/data_wait_ms": waited_ms})])
    assert (("amp_bf16", "waiting_for_data") in found) == told
    if told:
        reason = found["amp_bf16", "waiting_for_data"]
        assert (reason.evidence["perf/data_wait_ms"], reason.on_gpu) == (30.0, False)


def test_an_idle_gpu_is_a_reason_and_a_busy_one_is_none():
    found = reasons([on_gpu("fp32", {"device/utilization_pct": 35.0}), on_gpu("amp_bf16")])
    assert found["fp32", "idle_device"].evidence == {"device/utilization_pct": 35.0}
    assert reasons([on_gpu("fp32", {"device/utilization_pct": 99.0}), on_gpu("amp_bf16")]) == {}
    assert reasons([with_summary("fp32", summary={"device/utilization_pct": 35.0}), run("amp_bf16")]) == {}


def test_skipped_steps_are_a_reason_when_they_are_many():
    found = reasons([run("fp32"), with_summary("amp_fp16", skipped=20, summary={"amp/applied_steps": 180})])
    assert found["amp_fp16", "skipped_steps"].evidence == {"skipped_steps": 20, "steps": 200}
    assert reasons([run("fp32"), with_summary("amp_fp16", skipped=1, summary={"amp/applied_steps": 999})]) == {}


def test_what_else_changed_the_speed_of_runs_is_told():
    found = reasons([run("fp32"), contaminated("fp32", 1, "the GPU was hot"), run("amp_bf16")])
    reason = found["fp32", "contaminated"]
    assert (reason.evidence["num_runs"], reason.num_runs) == (1, 2)
    assert [cause.text for cause in reason.causes] == ["the GPU was hot"]


def test_causes_that_differ_in_figures_are_told_as_one():
    busy = [contaminated("amp_bf16", s, f"others kept {c} of 2 cores busy") for s, c in enumerate((0.6, 1.0, 1.0))]
    hot = contaminated("amp_bf16", 3, "the GPU was hot")
    reason = reasons([run("fp32"), hot, *busy])["amp_bf16", "contaminated"]
    told = [(cause.text, cause.num_runs, cause.seeds) for cause in reason.causes]
    assert told == [("others kept 0.6 to 1.0 of 2 cores busy", 3, (0, 1, 2)), ("the GPU was hot", 1, (3,))]
