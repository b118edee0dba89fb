import pytest
import torch
from synthetic_records import run, sweep, workload

from ampsweep.analysis.reasons import find_pitfalls
from ampsweep.analysis.runs import Run
from ampsweep.config.modes import MODES

MIB = 2**20
AUTOCAST = {"precision": {"mode": "amp_bf16", "autocast": True, "parameters": "float32", "dtype": "bfloat16"}}


def reasons(*entries):
    return {(reason.arm, reason.kind()): reason for reason in workload(entries).verdict.reasons}


def on_gpu(arm, summary=(), facts=(), **more):
    of = {"device": "cuda", "device_name": "a GPU", "dtype": "float32" if arm == "fp32" else "bfloat16"} | dict(facts)
    directory, record = run(arm, num_operators=None, facts=of, **more)
    record.summary |= dict(summary)
    return directory, record


def memory(**mib):
    return {"peak": {category: MIB * size for category, size in mib.items()}}


def test_a_baseline_far_below_the_peak_does_little_arithmetic():
    assert reasons(*sweep("fp32", [100.0] * 3, num_operators=None), *sweep("amp_bf16", [50.0] * 3)) == {}
    found = reasons(on_gpu("fp32", {"perf/mfu_pct": 7.0}), on_gpu("amp_bf16"))
    assert found[None, "little_arithmetic"].mfu_pct == 7.0
    assert reasons(on_gpu("fp32", {"perf/mfu_pct": 60.0}), on_gpu("amp_bf16")) == {}


def test_sizes_that_are_no_multiple_of_8_are_named_on_a_gpu():
    for model, facts, sizes in (
        ({"vocab_size": 50257, "hidden_size": 768, "num_heads": 12, "name": "gpt"}, {}, {"model.vocab_size": 50257}),
        ({"vocab_size": 50304, "hidden_size": 768, "num_heads": 12, "name": "gpt"}, {}, None),
        (
            {"hidden_size": 72, "num_heads": 6},
            {"batch_size": 3, "seq_len": 7},
            {"model.hidden_size / model.num_heads": 12, "data.batch_size * data.seq_len": 21},
        ),
        ({"vocab_size": 50257}, {"device": "cpu"}, None),  # which has no tensor cores
    ):
        found = reasons(*(on_gpu(arm, config={"model": model}, facts=facts) for arm in ("fp32", "amp_bf16")))
        assert [reason.sizes for reason in found.values()] == ([] if sizes is None else [sizes])


def test_much_float32_and_many_skipped_steps_are_reasons():
    def half(**flops):
        return run("amp_bf16", proof={"flops": flops}, facts={"dtype": "bfloat16"}, config=AUTOCAST)

    found = reasons(run("fp32"), half(bfloat16=700, float32=300))
    assert found["amp_bf16", "float32_arithmetic"].share_pct == 30.0
    assert ("amp_bf16", "float32_arithmetic") not in reasons(run("fp32"), half(bfloat16=990, float32=10))
    assert reasons(run("fp32", proof={"flops": {"float32": 9}}), run("tf32")) == {}
    entry = on_gpu("amp_fp16", {"amp/applied_steps": 180}, {"batch_size": 8}, skipped=20)
    skipped = reasons(on_gpu("fp32"), entry)["amp_fp16", "skipped_steps"]
    assert (skipped.skipped_steps, skipped.steps) == (20, 200)
    assert reasons(on_gpu("fp32"), on_gpu("amp_fp16", {"amp/applied_steps": 999}, skipped=1)) == {}


def test_weight_copies_and_few_activations_explain_the_memory():
    bf16 = run("amp_bf16", memory=memory(parameters=60, activations=25, autocast_weights=30), config=AUTOCAST)
    found = reasons(run("fp32", memory=memory(parameters=60, activations=40)), bf16)["amp_bf16", "cast_cache"]
    assert (found.autocast_weights_bytes, found.activations_saved_bytes) == (30 * MIB, 15 * MIB)
    bf16 = run("amp_bf16", memory=memory(parameters=90, activations=5), peak_mib=95.0, config=AUTOCAST)
    fp32 = run("fp32", memory=memory(parameters=90, activations=10), peak_mib=100.0)
    found = reasons(fp32, bf16)["amp_bf16", "few_activations"]
    assert (found.activations_bytes, found.peak_bytes) == (10 * MIB, 100 * MIB)


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
    own = [name for name, mode in MODES.items() if mode.implementation is not None]
    assert own
    assert not any({"vanishing_updates", "stuck_moment"} & pitfalls(name).keys() for name in own)


@pytest.mark.parametrize(("beta2", "is_stuck"), [(0.999, True), (0.99, False), (0.95, False)])
def test_a_second_moment_in_bfloat16_cannot_fall(beta2, is_stuck):
    assert ("stuck_moment" in pitfalls("pure_bf16", beta2=beta2)) == is_stuck
    assert "stuck_moment" not in pitfalls("pure_bf16", beta2=beta2, state="float32")
    moment = torch.tensor(0.7, dtype=torch.bfloat16)
    assert torch.equal((moment.float() * beta2).bfloat16(), moment) == is_stuck, "it is so"
    narrow = pitfalls("amp_bf16+state_dtype=bfloat16", parameters="float32", state="bfloat16", beta2=beta2)
    assert set(narrow) == ({"stuck_moment"} if is_stuck else set())
