"""The runs of a comparison and what is found in them (`golden/findings.md`), and the comparison as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_records import contaminated, disproved, document, failed, figures, out_of_memory, run, searched, sweep
from synthetic_records import workload as compared

from ampsweep.analysis import run_findings
from ampsweep.analysis.comparison import FileProblem, compare
from ampsweep.analysis.run_findings import CutShort, float8_summary, merged
from ampsweep.analysis.time_to_loss import LossCurve
from ampsweep.finding import as_data
from ampsweep.records.sections import Float8Layer, Float8Proof, KeptLayer, RankFigures


def test_models_are_compared_each_with_its_own_baseline():
    times = (("small", "fp32", 8.0), ("small", "amp_bf16", 8.0), ("large", "fp32", 8.0), ("large", "amp_bf16", 2.0))
    entries = [entry for model, arm, time in times for entry in sweep(arm, [time] * 3, facts={"model": model})]
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    speedups = {workload.title: workload.arms[1].speedup.value for workload in comparison.workloads}
    assert speedups == pytest.approx({"model large": 4.0, "model small": 1.0})
    assert compare([], baseline="fp32", margin_pct=1.0).workloads == ()
    for margin in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"report\.margin_pct is .*; it must be above 0"):
            compare([], baseline="fp32", margin_pct=margin)


def apart(**facts):
    return [run("fp32", directory=at, **{key: of(at) for key, of in facts.items()}) for at in "AB"]


def ranks(arm, *devices):
    of = [RankFigures(rank=n, host="node1", device=device) for n, device in enumerate(devices)]
    return run(arm, ranks=of)


def on(arm, seed, device, host="node1"):
    return run(arm, seed, facts={"device": device}, attempts=[{"host": host}])


FP32 = [on("fp32", seed, "cuda:0") for seed in range(3)]
WITH_MARGIN = [run(arm, config={"report": {"margin_pct": 1.0}}) for arm in ("fp32", "tf32")]
UNKNOWN = {"contamination": {"verdict": "unknown", "reasons": ["nothing tells"]}}
NOTES = {
    "a run twice": [run("fp32", 0), run("fp32", 0), run("amp_bf16", 0)],
    "predicted": [run("fp32", 0), run("amp_bf16", 0), run("amp_bf16", 1, kind="predicted")],
    "two sources": apart(environment=lambda version: {"code_version": version}),
    "one device": FP32 + [on("amp_bf16", seed, "cuda:0") for seed in range(3)],
    "two devices of a kind": FP32 + [on("amp_bf16", seed, f"cuda:{min(seed, 1)}") for seed in range(3)],
    "two hosts": [FP32[0], on("amp_bf16", 0, "cuda:0", "node2")],
    "ranks in another order": [ranks("fp32", "cuda:0", "cuda:1"), ranks("amp_bf16", "cuda:1", "cuda:0")],
    "ranks elsewhere": [ranks("fp32", "cuda:0", "cuda:1"), ranks("amp_bf16", "cuda:2", "cuda:1")],
    "unknown contamination": [run("fp32", 0, **UNKNOWN), run("fp32", 1), run("amp_bf16", 1)],
    "recorded margin": WITH_MARGIN,
    "disturbed": [
        *(run("fp32"), contaminated("amp_bf16", 0, "it was hot"), contaminated("amp_bf16", 1, "0.6 cores were busy")),
        *(contaminated("fp32", 1, "1.4 cores were busy"), failed("amp_fp16", 0, "oom")),
    ],
}
TRACKED = [run("fp32", wandb={"url": "https://wandb.ai/x"}), run("amp_bf16", wandb={"directory": "wandb/offline-1"})]
LISTED = (
    [*TRACKED, run("amp_bf16", 1, cut_short="time"), failed("tf32", 0, "unsupported", "no GPU.\nmore")],
    [disproved("fp32", 2), contaminated("tf32", 2), run("amp_bf16", 2)],
)
HIDDEN = ("directory", "run_id", "ranks", "run")
PROOF = Float8Proof(
    recipe="rowwise",
    converted=[Float8Layer(name="body", in_features=32, out_features=64, flops={"float8_e4m3fn": 65536}, casts=2)],
    kept=[KeptLayer(name="stem", kind="Conv2d", why="no_linear"), KeptLayer(name="head", kind="L", why="output")],
)


def test_findings_and_notes(golden):
    assert float8_summary(None) is float8_summary(Float8Proof(recipe="rowwise")) is None
    in_float8 = [PROOF, PROOF | Float8Proof(emulated="cpu has none"), replace(PROOF, kept=None)]
    names = ("not readable", "no history", "damaged history", "not finite")
    problems = [FileProblem(path="a/x", name=name, reason="is odd") for name in names]
    noted = {name: compare(entries, baseline="fp32", margin_pct=1.0).notes for name, entries in NOTES.items()}
    noted["another margin"] = compare(WITH_MARGIN, baseline="fp32", margin_pct=5.0).notes
    text = document(
        listed={entry.directory: figures(entry, HIDDEN) for entries in LISTED for entry in compared(entries).runs},
        runs=[
            run_findings.Leaks(seeds=(0,), cause="3.00 MiB"),
            run_findings.GraphBreaks(seeds=(0, 1), num_breaks=2, cause="nets.py, line 8: a print"),
            run_findings.Recompiled(seeds=(0,), cause="a size"),
            *(run_findings.InFloat8(seeds=(0,), layers=float8_summary(one)) for one in in_float8),
        ],
        notes={name: " | ".join(f"{one.kind()}: {one.sentence}" for one in notes) for name, notes in noted.items()},
        files={of.name: f"{of.sentence}: {of.consequence}" for of in problems},
    )
    golden("findings.md", text)


def test_problems_are_merged_and_listed_the_gravest_first():
    hot = [contaminated("amp_bf16", seed, f"others kept {seed}.5 cores busy") for seed in range(2)]
    entries = [*sweep("fp32", [100.0] * 3), *hot, failed("amp_bf16", 2, "oom", "no memory")]
    entries += [failed("tf32", seed, "unsupported") for seed in range(3)]
    found = compare(entries, baseline="fp32", margin_pct=1.0).problems
    assert [(one.finding.name, one.finding.severity, one.arm, one.seeds, one.finding.why) for one in found] == [
        ("oom", "fault", "amp_bf16", (2,), "no memory"),
        ("not paired", "warning", "fp32", (2,), "no other arm has a completed run with its pair key"),
    ]
    rare, *often = [CutShort(seeds=(n,), cause=why) for n, why in enumerate(("slow", "0.6 s", "1.0 s"))]
    together = CutShort(seeds=(1, 2), cause="0.6 to 1.0 s")
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
    assert (note["kind"], note["seeds"], note["status"]) == ("not_completed", [0], "unsupported")
    bf16 = next(arm for arm in workload["verdict"]["arms"] if arm["arm"] == "amp_bf16")
    assert (bf16["time_to_loss"]["n"], bf16["time_to_loss"]["num_reached"]) == (3, 3)
    assert not {"run", "pairs"} & {*workload["runs"][0], *bf16}
    assert comparison.relative_to(Path("runs")).workloads[0].runs[0].directory == "fp32-gpt_tiny-8-s0"
    assert Path(comparison.relative_to(Path("elsewhere")).workloads[0].runs[0].directory).is_absolute()
