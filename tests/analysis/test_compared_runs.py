import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_records import arms, contaminated, disproved, failed, out_of_memory, run, searched, sweep
from synthetic_records import workload as compared

from ampsweep.analysis.comparison import GivenTwice, OtherMargin, Predicted, compare
from ampsweep.analysis.run_findings import Contaminated, NotCompleted, merged
from ampsweep.analysis.time_to_loss import LossCurve
from ampsweep.finding import as_data


def test_models_are_compared_each_with_its_own_baseline():
    times = (("small", "fp32", 8.0), ("small", "amp_bf16", 8.0), ("large", "fp32", 8.0), ("large", "amp_bf16", 2.0))
    entries = [entry for model, arm, time in times for entry in sweep(arm, [time] * 3, facts={"model": model})]
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    speedups = {workload.title: workload.arms[1].speedup.value for workload in comparison.workloads}
    assert speedups == pytest.approx({"model large": 4.0, "model small": 1.0})
    assert compare([], baseline="fp32", margin_pct=1.0).workloads == ()


def test_every_run_is_listed_with_why_it_does_not_count():
    entries = [run("fp32", 0, wandb={"url": "https://wandb.ai/x"}), failed("tf32", 0, "unsupported", "no GPU.\nmore")]
    entries += [run("amp_bf16", 0, wandb={"mode": "offline", "directory": "wandb/offline-1"}, cut_short="time")]
    fp32, tf32, bf16 = compared(entries).runs
    assert (fp32.tracked_at, bf16.tracked_at, tf32.tracked_at) == ("https://wandb.ai/x", "wandb/offline-1", None)
    assert (fp32.not_paired, bf16.not_paired, tf32.not_paired, tf32.error) == (None, None, None, "no GPU")
    assert tf32.findings == (NotCompleted(seeds=(0,), status="unsupported", cause="no GPU"),)
    assert [entry.status for entry in (fp32, tf32, bf16)] == ["completed", "unsupported", "cut short"]
    fp32, tf32, bf16 = compared([disproved("fp32", 0), contaminated("tf32", 0), run("amp_bf16", 0)]).runs
    assert (fp32.status, fp32.not_paired, fp32.contaminated) == ("disproved", None, None)
    assert (tf32.status, tf32.contaminated) == ("completed", "other processes kept 1.0 of 2 cores busy")
    assert bf16.contaminated is None
    assert bf16.not_paired.kind() == tf32.not_paired.kind() == "baseline_without_figures"


def test_an_arm_without_a_speed_says_why_unless_others_ran():
    untimed = [run("amp_bf16", 0, step_ms=None), contaminated("amp_bf16", 1, step_ms=None)]
    for _, record in untimed:
        record.absent["perf/step_ms"] = "the training ended before its warm-up was over"
    notes = {note.kind(): note.seeds for note in arms([run("fp32", 0), *untimed])["amp_bf16"].notes}
    assert (notes["not_timed"], notes["contaminated"]) == ((0,), (1,))


def test_duplicates_predictions_and_other_devices_are_noted():
    entries = [run("fp32", 0), run("fp32", 0), run("amp_bf16", 0), run("amp_bf16", 1, kind="predicted")]
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    assert [entry.arm for entry in comparison.workloads[0].runs] == ["fp32", "amp_bf16"]
    assert comparison.notes == (GivenTwice(num_runs=1), Predicted(num_runs=1))
    entries = [run(arm, config={"report": {"margin_pct": 1.0}}) for arm in ("fp32", "tf32")]
    assert compare(entries, baseline="fp32", margin_pct=1.0).notes == ()
    late = compare(entries, baseline="fp32", margin_pct=5.0).notes
    assert late == (OtherMargin(margin_pct=5.0, recorded_margin_pct=1.0),)
    apart = [run("fp32", facts={"device_name": at}, environment={"code_version": at}, directory=at) for at in "AB"]
    notes = {note.kind(): note.num_runs_of for note in compare(apart, baseline="fp32", margin_pct=1.0).notes}
    assert notes == {"several_devices": {"A": 1, "B": 1}, "several_sources": {"A": 1, "B": 1}}
    for margin in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"report\.margin_pct is .*; it must be above 0"):
            compare([], baseline="fp32", margin_pct=margin)


def test_problems_are_merged_and_listed_the_gravest_first():
    hot = [contaminated("amp_bf16", seed, f"others kept {seed}.5 cores busy") for seed in range(2)]
    entries = [*sweep("fp32", [100.0] * 3), *hot, failed("amp_bf16", 2, "oom", "no memory")]
    found = compare(entries, baseline="fp32", margin_pct=1.0).problems
    assert [(one.finding.name, one.finding.severity, one.arm, one.seeds, one.finding.why) for one in found] == [
        ("oom", "fault", "amp_bf16", (2,), "no memory"),
        ("not paired", "warning", "fp32", (2,), "no other arm has a completed run with its pair key"),
        ("contaminated", "warning", "amp_bf16", (0, 1), "others kept 0.5 to 1.5 cores busy"),
    ]
    assert found[2].finding.consequence == "its speed does not count"
    rare = Contaminated(seeds=(3,), cause="the GPU was hot")
    often = [Contaminated(seeds=(s,), cause=f"others kept {c} cores busy") for s, c in enumerate((0.6, 1.0, 1.0))]
    together = Contaminated(seeds=(0, 1, 2), cause="others kept 0.6 to 1.0 cores busy")
    assert merged([rare, *often]) == (together, rare), "the most common first"


def test_a_comparison_is_strict_json_without_the_runs_behind_it():
    entries = sweep("fp32", [100.0, 101.0, 99.0]) + sweep("amp_bf16", [100.0, 101.0, 99.0])
    curve = LossCurve(losses=np.array([4.0, 2.0]), seconds=np.array([5.0, 10.0]))
    curves = {directory: {"val/loss": curve} for directory, _ in entries}
    lost = [failed("tf32", 0, "unsupported", "no TF32 here"), contaminated("amp_fp16", 0, "the GPU was hot")]
    everything = [*entries, *lost, searched("fp32", 4, out_of_memory(5))]
    comparison = compare(everything, baseline="fp32", margin_pct=1.0, curves=curves)
    (workload,) = json.loads(json.dumps(as_data(comparison), allow_nan=False))["workloads"]
    (note,) = next(arm["notes"] for arm in workload["arms"] if arm["arm"] == "tf32")
    facts = {"seeds": [0], "cause": "no TF32 here", "status": "unsupported"}
    assert note == {"kind": "not_completed", **facts, "sentence": "unsupported: no TF32 here (seed 0)"}
    bf16 = next(arm for arm in workload["verdict"]["arms"] if arm["arm"] == "amp_bf16")
    assert (bf16["time_to_loss"]["n"], bf16["time_to_loss"]["num_reached"]) == (3, 3)
    assert "run" not in workload["runs"][0]
    assert "pairs" not in bf16
    assert comparison.relative_to(Path("runs")).workloads[0].runs[0].directory == "fp32-gpt_tiny-8-s0"
    assert Path(comparison.relative_to(Path("elsewhere")).workloads[0].runs[0].directory).is_absolute()
