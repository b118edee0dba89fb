"""Arms beside the baseline: their figures (`golden/figures.md`), and what limits their steps (`golden/limits.md`)."""

from synthetic_records import UNKNOWN, arms, contaminated, disproved, document, failed, figures, run

from synthetic_records import shown, sweep, workload  # isort: skip

from ampsweep.records.sections import StepPrediction, UnvouchedOperator

LOSSES = [1.0, 2.0, 3.0]
UNTIMED = {"step_ms": None, "absent": {"perf/step_ms": "the training ended before its warm-up was over"}}


def speeds_memory_and_losses():
    learned = {"val_loss": [loss + 0.02 for loss in LOSSES], "peak_mib": [700.0, 710.0, 690.0], "skipped": [3, 0, 4]}
    return [
        *sweep("fp32", [150.0, 153.0, 147.0], val_loss=LOSSES),
        *sweep("amp_bf16", [100.0, 101.0, 99.0], **learned),
        *sweep("amp_fp16", [1500.0, 1540.0, 1460.0], peak_mib=1100.0),
        *sweep("tf32", [151.0, 149.0, 152.0], accuracy=[0.9, 0.92, 0.91]),
    ]


def a_run_without_a_partner():
    slow = {"val_loss": [2.0, 2.1, 1.9, 9.0], "peak_mib": [100, 100, 100, 900]}
    entries = sweep("fp32", [100.0, 102.0, 98.0, 500.0], **slow)
    entries += sweep("amp_bf16", [50.0, 51.0, 49.0], val_loss=[2.01, 2.11, 1.91], peak_mib=80)
    return [*entries, run("tf32", 7, step_ms=40.0, val_loss=2.5)]


def penalties_of_autocast():
    def penalty(value):
        return {"summary": {"val/autocast_penalty": value}}

    amp = [run("amp_bf16", seed, **penalty(value)) for seed, value in enumerate((0.001, 0.003, -0.001, 0.002))]
    cut = run("amp_bf16", 9, cut_short="trainer.max_seconds=1 passed", **penalty(9.0))
    return [*sweep("fp32", [1.0] * 3), *amp, cut, disproved("amp_fp16", 0, **penalty(5.0))]


def repeats(**of_second):
    first = run("amp_bf16", step_ms=4.0, pair_key="a" if of_second else None)
    return [first, run("amp_bf16", step_ms=6.0, val_loss=2.2, directory="again", **of_second)]


FIGURES = {
    "speeds, memory and losses": speeds_memory_and_losses(),
    "a lost seed": [
        *sweep("fp32", [10.0, 11.0, 12.0], val_loss=[2.0, 2.1, 2.9]),
        *sweep("amp_fp16", [5.0, 5.6], val_loss=[2.1, 2.2]),
        failed("amp_fp16", 2, "diverged", "nan"),
    ],
    "a run without a partner": a_run_without_a_partner(),
    "stopped early": sweep("fp32", [10.0, 11.0, 12.0], val_loss=[1.0, 1.1, 1.2])
    + sweep("amp_fp16", [5.0] * 3, val_loss=[1.0, 1.1, 1.2], stopped_early=True, cut_short="after step 6 of 9"),
    "cut short": sweep("fp32", [10.0, 11.0, 12.0]) + sweep("amp_fp16", [100.0] * 3, cut_short="time", val_loss=9.0),
    "two disproved": [
        *(disproved("fp32", seed, step_ms=1.0, val_loss=9.0, skipped=5) for seed in (0, 1)),
        run("fp32", 2, skipped=0),
        *sweep("amp_bf16", [50.0] * 3),
    ],
    "one contaminated": [
        *sweep("fp32", [100.0] * 3),
        *sweep("amp_bf16", [50.0] * 2, peak_mib=700.0),
        contaminated("amp_bf16", 2, step_ms=900.0, peak_mib=700.0),
    ],
    "baseline contaminated": [*(contaminated("fp32", seed) for seed in range(3)), *sweep("amp_bf16", [50.0] * 3)],
    "unknown contamination": [
        *(run("fp32", 0, **UNKNOWN), run("fp32", 1), run("amp_bf16", 1)),
        *(run("amp_bf16", seed, **UNKNOWN) for seed in (0, 5)),
    ],
    "a repeat is no second seed": [run("fp32", step_ms=10.0), *repeats()],
    "a seed under two keys is no repeat": [
        *(run("fp32", pair_key=key, directory=f"fp32 {key}") for key in "ab"),
        *repeats(pair_key="b"),
    ],
    "nothing measured": [failed("fp32", 0, "oom"), run("amp_bf16", 0, step_ms=None, peak_mib=None, val_loss=None)],
    "not timed": [run("fp32"), run("amp_bf16", **UNTIMED), contaminated("amp_bf16", 1, **UNTIMED)],
    "loss not finite": [run("fp32"), run("tf32", val_loss=float("nan"))],
    "penalties of autocast": penalties_of_autocast(),
}
NO_FIGURES = ("arm", "num_operators", "us_per_operator", "limits", "notes", "is_baseline", "keys")


def test_the_figures_of_arms(golden):
    lines = {}
    for name, entries in FIGURES.items():
        found = workload(entries)
        assert [arm.arm for arm in found.arms if arm.is_baseline] == ["fp32"]
        for arm in found.arms:
            notes = [f"{note.kind()}: {note.sentence}" for note in arm.notes]
            lines[f"{name}, {arm.arm}"] = "; ".join([figures(arm, without=NO_FIGURES), *notes])
    golden("figures.md", document(figures=lines))


def on(device, arm, is_compiled=False, **more):
    return run(arm, facts={"device": device, "device_name": "it", "compile": is_compiled}, **more)


def with_bf16(**more):
    launching = {f"perf/{key}": more.pop(key) for key in ("launch_ms", "device_lag_ms") if key in more}
    return [on("cuda:0", "fp32", step_ms=700.0), on("cuda:0", "amp_bf16", summary=launching, **more)]


def of_1000_operators(device, us_each):
    return [on(device, arm, num_operators=1000, step_ms=us_each) for arm in ("fp32", "amp_bf16")]


def waiting(**measured):
    names = {"wait_ms": "perf/data_wait_ms", "utilization_pct": "device/utilization_pct"}
    return [on("cuda:0", "fp32", summary={names[key]: value for key, value in measured.items()})]


LIMITS = {
    "only the arm": with_bf16(step_ms=0.76, num_operators=95),
    "49 us on a CPU": of_1000_operators("cpu", 49.0),
    "51 us on a CPU": of_1000_operators("cpu", 51.0),
    "19 us on a GPU": of_1000_operators("cuda:0", 19.0),
    "21 us on a GPU": of_1000_operators("cuda:0", 21.0),
    "launching as long as the step": with_bf16(step_ms=0.76, launch_ms=0.74),
    "launching in less": with_bf16(step_ms=0.76, launch_ms=0.5),
    "host first": with_bf16(step_ms=500.0, launch_ms=480.0, device_lag_ms=1.0),
    "device behind": with_bf16(step_ms=500.0, launch_ms=480.0, device_lag_ms=40.0),
    "compiled": with_bf16(step_ms=0.5, is_compiled=True),
    "compiled, measured": with_bf16(step_ms=1.0, is_compiled=True, launch_ms=0.95),
    "waiting for data, busy": waiting(wait_ms=30.0, utilization_pct=99.0),
    "waiting for data, idle": waiting(wait_ms=30.0, utilization_pct=60.0),
    "waiting for data": waiting(wait_ms=30.0),
    "waiting for longer than a step": waiting(wait_ms=130.0),
    "baseline launching, measured": [on("cuda:0", "fp32", summary={"perf/launch_ms": 95.0})],
    "the same compiled": [on("cuda:0", "fp32", is_compiled=True, summary={"perf/launch_ms": 95.0})],
    "waiting for 9% of a step": waiting(wait_ms=9.0),
    "idle": waiting(utilization_pct=70.0),
    "busy": waiting(utilization_pct=99.0),
    "contaminated beside clean": [run("fp32"), run("amp_bf16", step_ms=4.0), contaminated("amp_bf16", 1, step_ms=90.0)],
    "waiting, contaminated": [run("fp32"), contaminated("amp_bf16", step_ms=4.0, summary={"perf/data_wait_ms": 6.0})],
    "63 MiB": [run("fp32", peak_mib=63.0)],
    "64 MiB": [run("fp32", peak_mib=64.0)],
    "no operators counted": [run("fp32", step_ms=1.0, num_operators=None, peak_mib=None)],
    "baseline compiled": [run("fp32", step_ms=1.0, facts={"compile": True})],
    "baseline out of memory": [failed("fp32", 0, "oom", num_operators=430, step_ms=1.0), run("amp_bf16")],
}


def test_the_limits_of_steps(golden):
    lines = {}
    for name, entries in LIMITS.items():
        found = workload(entries)
        of_arms = [f"{arm.arm}: {limit.sentence}" for arm in found.arms for limit in arm.limits]
        times = [f"{shown(arm.us_per_operator)} us an operator of {arm.arm}" for arm in found.arms]
        lines[name] = "; ".join([*times, *of_arms, *(caution.sentence for caution in found.cautions)])
    golden("limits.md", document(limits=lines))


def test_arms_stand_in_canonical_order_with_the_baseline_first():
    labels = ["fp32", "tf32", "amp_bf16", "amp_bf16+cache_enabled=false", "amp_fp16", "pure_bf16", "mine"]
    assert list(arms([run(label) for label in reversed(labels)])) == labels
    assert next(iter(arms([run(label) for label in labels], baseline="amp_fp16"))) == "amp_fp16"


def predicting(arm, seed, peak_mib=None, target="cuda 8.0", **more):
    figures = {} if peak_mib is None else {"allocator_peak_bytes": 2**20 * peak_mib, "reserved_bytes": 2**21 * peak_mib}
    return run(arm, seed, prediction={"on_cuda": StepPrediction(target=target, **figures, **more)})


def test_what_a_gpu_would_take_by_runs_without_one():
    entries = [
        *(predicting("fp32", seed, peak) for seed, peak in enumerate((99, 100, 104))),
        predicting("fp32", 3, 1, target="cuda 9.0"),
        predicting("amp_bf16", 0, 70, unvouched=[UnvouchedOperator(name="mine.op", doubt="custom")]),
        predicting("pure_bf16", 0, 100),
        *(predicting(arm, 0, refused="CUDA refuses it") for arm in ("fp8_rowwise", "amp_fp16")),
        run("tf32"),
    ]
    found = workload(entries).on_gpu
    assert [(arm.arm, arm.reserved_bytes, arm.saved_pct) for arm in found.arms[:2]] == [
        ("fp32", 200 * 2**20, None),
        ("amp_bf16", 140 * 2**20, 30.0),
    ]
    assert found.sentence == (
        "on CUDA 8.0: peak memory of fp32 100 MiB, amp_bf16 70.0 MiB (30.0% less), pure_bf16 "
        "100 MiB (the same), with cuBLAS workspaces and without the driver's context; not vouched for: the memory of "
        "mine.op; nothing for fp8_rowwise, amp_fp16: CUDA refuses it"
    )
    timed = [("fp32", 0, 41.0), ("amp_bf16", 0, 17.0), ("amp_bf16", 1, 17.2)]
    entries = [
        predicting(arm, seed, 1, "A100-80", step_ms=ms, step_ms_high=1.2 * ms, error_correlation=0.5)
        for arm, seed, ms in timed
    ]
    named = workload([*entries, predicting("tf32", 0, 1, "A100-80")]).on_gpu
    assert named.sentence.startswith("on A100-80: peak memory of fp32 1.00 MiB, ")
    assert named.sentence.endswith("; speed: fp32 41.0 ms a step, amp_bf16 2.4x as fast (2.0-2.9x)")
    lost = workload([predicting("fp32", 0, target="cuda", refused="it does not answer")]).on_gpu
    assert lost.sentence == "on CUDA: nothing for fp32: it does not answer"
    assert workload([run("fp32"), run("amp_bf16")]).on_gpu is None
