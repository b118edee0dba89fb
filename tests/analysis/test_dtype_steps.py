"""The steps away from float32, by the dtypes that records have and not by the names of arms."""

import pytest
from synthetic_records import sweep

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.dtype_steps import DtypeChange, SettingChange
from ampsweep.config.modes import MODES, distinctions, step_dtypes

STEPS = [100.0, 101.0, 99.0]
LOSSES = [2.00, 2.02, 1.98]


def dtypes(text):
    """Compute, parameters, gradients and optimizer state from short names: 'b f f f'."""
    names = {"f": "float32", "b": "bfloat16", "h": "float16", "8": "float8_e4m3fn", "i": "int8"}
    kinds = ("compute", "parameters", "gradients", "optimizer_state")
    return {kind: names[short] for kind, short in zip(kinds, text.split(), strict=True)}


def arm(name, text, factor=1.0, **more):
    return sweep(name, [factor * step for step in STEPS], **{"val_loss": LOSSES, "dtypes": dtypes(text), **more})


def steps(*arms, baseline="fp32"):
    (workload,) = compare([e for one in arms for e in one], baseline=baseline, margin_pct=1.0).workloads
    return workload.verdict.steps


def ways(*arms, **more):
    return [(one.before, one.after) for one in steps(*arms, **more)]


FP32 = arm("fp32", "f f f f")
AMP = arm("amp_bf16", "b f f f", 0.5, peak_mib=800.0)
PURE = arm("pure_bf16", "b b b b", 0.4, peak_mib=500.0, val_loss=[2.1, 2.12, 2.08])


def test_a_step_is_from_the_arm_that_differs_in_fewest_dtypes():
    master = arm("mine", "b b b f")
    narrow = arm("pure_bf16+state_dtype=int8", "b b b i")
    eight = arm("mine8", "8 f f f")
    assert ways(FP32, narrow, eight, PURE, AMP, master) == [
        ("fp32", "amp_bf16"),
        ("amp_bf16", "mine"),
        ("mine", "pure_bf16"),
        ("amp_bf16", "mine8"),
        ("pure_bf16", "pure_bf16+state_dtype=int8"),
    ]


def test_only_arms_that_are_there_take_part():
    assert ways(FP32, PURE) == [("fp32", "pure_bf16")]
    assert ways(AMP, PURE, baseline="pure_bf16") == [("amp_bf16", "pure_bf16")]
    assert steps(FP32) == ()


def test_a_step_says_what_it_changes():
    (to_amp, to_pure) = steps(FP32, AMP, PURE)
    assert to_amp.dtypes == (DtypeChange(kind="compute", before="float32", after="bfloat16"),)
    assert [one.kind for one in to_pure.dtypes] == ["parameters", "gradients", "optimizer_state"]
    assert to_pure.settings == ()
    (scaled,) = steps(FP32, arm("amp_fp16", "h f f f"))
    assert scaled.settings == (SettingChange(name="grad_scaler", before=None, after="true"),)


def test_settings_are_a_step_where_dtypes_are_the_same():
    (tf32,) = steps(FP32, arm("tf32", "f f f f"))
    assert (tf32.dtypes, tf32.settings) == ((), (SettingChange(name="tf32", before=None, after="true"),))
    uncached = arm("amp_bf16+cache_enabled=false", "b f f f")
    assert ways(FP32, AMP, uncached, arm("tf32", "f f f f"))[-1] == ("amp_bf16", "amp_bf16+cache_enabled=false")


def test_a_step_has_its_figures_with_their_intervals():
    (_, step) = steps(FP32, AMP, PURE)
    assert step.speedup.value == pytest.approx(1.25)
    assert step.memory_saved_bytes.value == 300 * 2**20
    assert step.memory_saved_pct.value == pytest.approx(37.5)
    assert step.loss_gap.value == pytest.approx(0.1)
    assert step.loss_gap.n == 3


def test_arms_without_dtypes_or_figures():
    unknown = sweep("tf32", STEPS, val_loss=LOSSES)
    short = arm("pure_bf16", "b b b b")[:1]
    (to_amp, to_pure) = steps(FP32, AMP, unknown, short)
    assert (to_amp.after, to_pure.after) == ("amp_bf16", "pure_bf16")
    assert (to_pure.speedup.n, to_pure.speedup.interval) == (1, None)


def test_every_mode_differs_from_float32_in_something_told():
    fp32 = step_dtypes(MODES["fp32"].settings)
    for name, mode in MODES.items():
        is_told = step_dtypes(mode.settings) != fp32 or distinctions(name) or mode.implementation
        assert is_told or name == "fp32", name
