from synthetic_records import run, sweep

from ampsweep.analysis.comparison import compare

MIB = 2**20
AUTOCAST = {"precision": {"mode": "amp_bf16", "autocast": True, "parameters": "float32"}}
GPU = {"device": "cuda", "device_name": "a GPU", "dtype": "bfloat16"}


def reasons(entries):
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    return {(reason.arm, reason.kind()): reason for reason in workload.verdict.reasons}


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


def test_a_baseline_far_below_the_peak_does_little_arithmetic():
    found = reasons([on_gpu("fp32", {"perf/mfu_pct": 7.0}), on_gpu("amp_bf16")])
    assert found[None, "little_arithmetic"].mfu_pct == 7.0
    assert reasons([on_gpu("fp32", {"perf/mfu_pct": 60.0}), on_gpu("amp_bf16")]) == {}


def test_sizes_that_are_no_multiple_of_8_are_named_on_a_gpu():
    config = {"model": {"vocab_size": 50257, "hidden_size": 768, "num_heads": 12, "name": "gpt"}}
    found = reasons([on_gpu("fp32", config=config), on_gpu("amp_bf16", config=config)])
    assert found[None, "odd_sizes"].sizes == {"model.vocab_size": 50257}
    padded = {"model": {"vocab_size": 50304, "hidden_size": 768, "num_heads": 12, "name": "gpt"}}
    assert reasons([on_gpu("fp32", config=padded), on_gpu("amp_bf16", config=padded)]) == {}
    assert reasons([run("fp32", config=config), run("amp_bf16", config=config)]) == {}, "a CPU has no tensor cores"


def test_head_size_and_rows_of_a_batch_are_sizes_too():
    config = {"model": {"hidden_size": 72, "num_heads": 6}}
    odd = {"facts": GPU | {"batch_size": 3, "seq_len": 7}}
    entries = [with_summary(arm, config=config, **odd) for arm in ("fp32", "amp_bf16")]
    assert reasons(entries)[None, "odd_sizes"].sizes == {
        "model.hidden_size / model.num_heads": 12,
        "data.batch_size * data.seq_len": 21,
    }


def test_arithmetic_that_stayed_in_float32_is_a_reason():
    def half(**flops):
        settings = {"precision": {"autocast": True, "dtype": "bfloat16"}}
        return run("amp_bf16", proof={"flops": flops}, facts={"dtype": "bfloat16"}, config=settings)

    found = reasons([run("fp32"), half(bfloat16=700, float32=300)])
    assert found["amp_bf16", "float32_arithmetic"].share_pct == 30.0
    assert ("amp_bf16", "float32_arithmetic") not in reasons([run("fp32"), half(bfloat16=990, float32=10)])
    assert reasons([run("fp32", proof={"flops": {"float32": 9}}), run("tf32")]) == {}


def test_a_cast_cache_that_outgrows_the_savings_is_told():
    entries = [
        run("fp32", memory=memory(parameters=60, activations=40)),
        run("amp_bf16", memory=memory(parameters=60, activations=25, autocast_weights=30), config=AUTOCAST),
    ]
    found = reasons(entries)["amp_bf16", "cast_cache"]
    assert (found.autocast_weights_bytes, found.activations_saved_bytes) == (30 * MIB, 15 * MIB)


def test_a_peak_of_few_activations_is_a_reason():
    entries = [
        run("fp32", memory=memory(parameters=90, activations=10), peak_mib=100.0),
        run("amp_bf16", memory=memory(parameters=90, activations=5), peak_mib=95.0, config=AUTOCAST),
    ]
    found = reasons(entries)["amp_bf16", "few_activations"]
    assert (found.activations_bytes, found.peak_bytes) == (10 * MIB, 100 * MIB)


def test_skipped_steps_are_a_reason_when_they_are_many():
    found = reasons([run("fp32"), with_summary("amp_fp16", skipped=20, summary={"amp/applied_steps": 180})])
    skipped = found["amp_fp16", "skipped_steps"]
    assert (skipped.skipped_steps, skipped.steps) == (20, 200)
    assert reasons([run("fp32"), with_summary("amp_fp16", skipped=1, summary={"amp/applied_steps": 999})]) == {}
