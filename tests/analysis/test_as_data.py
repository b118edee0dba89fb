"""A comparison as data: all of it is strict JSON, and findings say what they are."""

import json
from dataclasses import FrozenInstanceError, field

import numpy as np
import pytest
from synthetic_records import contaminated, failed, out_of_memory, searched, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.time_to_loss import LossCurve
from ampsweep.finding import Finding, as_data


def test_a_comparison_is_data_with_the_sentences_of_its_findings():
    entries = sweep("fp32", [100.0, 101.0, 99.0]) + sweep("amp_bf16", [100.0, 101.0, 99.0])
    curve = LossCurve(losses=np.array([4.0, 2.0]), seconds=np.array([5.0, 10.0]))
    curves = {directory: {"val/loss": curve} for directory, _ in entries}
    lost = [failed("tf32", 0, "unsupported", "no TF32 here"), contaminated("amp_fp16", 0, "the GPU was hot")]
    search = [searched("fp32", 4, out_of_memory(5))]
    comparison = compare([*entries, *lost, *search], baseline="fp32", margin_pct=1.0, curves=curves)
    data = as_data(comparison)
    assert json.loads(json.dumps(data, allow_nan=False)) is not None
    (workload,) = data["workloads"]
    notes = {arm["arm"]: arm["notes"] for arm in workload["arms"]}
    assert notes["tf32"] == [
        {
            "kind": "not_completed",
            "seeds": [0],
            "cause": "no TF32 here",
            "status": "unsupported",
            "sentence": "unsupported: no TF32 here (seed 0)",
        }
    ]
    to_loss = next(arm["time_to_loss"] for arm in workload["verdict"]["arms"] if arm["arm"] == "amp_bf16")
    assert (to_loss["n"], to_loss["num_reached"]) == (3, 3)


def test_problems_are_told_the_gravest_first():
    hot = [contaminated("amp_bf16", seed, f"others kept {seed}.5 cores busy") for seed in range(2)]
    entries = [*sweep("fp32", [100.0] * 3), *hot, failed("amp_bf16", 2, "oom", "no memory")]
    found = compare(entries, baseline="fp32", margin_pct=1.0).problems
    assert [(one.finding.name, one.finding.severity, one.arm, one.seeds, one.finding.why) for one in found] == [
        ("oom", "fault", "amp_bf16", (2,), "no memory"),
        ("not paired", "warning", "fp32", (2,), "no other arm has a completed run with its pair key"),
        ("contaminated", "warning", "amp_bf16", (0, 1), "others kept 0.5 to 1.5 cores busy"),
    ]
    assert found[2].finding.consequence == "its speed does not count"


class Spilled(Finding):
    severity = "warning"
    template = "{num_runs:count run} ({seeds:seeds}) spilled {spilled_bytes:bytes}, {per_run:.0f} each"

    seeds: tuple[int, ...]
    spilled_bytes: int
    runs: list[str] = field(default_factory=list, repr=False)

    @property
    def num_runs(self) -> int:
        return len(self.seeds)

    @property
    def per_run(self) -> float:
        return self.spilled_bytes / self.num_runs


def test_a_finding_is_its_facts_and_a_template():
    found = Spilled(seeds=(0, 1), spilled_bytes=2048, runs=["a", "b"])
    assert found.sentence == "2 runs (seeds 0, 1) spilled 2.00 KiB, 1024 each"
    assert as_data(found) == {
        "kind": "spilled",
        "seeds": [0, 1],
        "spilled_bytes": 2048,
        "sentence": found.sentence,
    }, "what is not shown is no data"
    with pytest.raises(FrozenInstanceError):
        found.spilled_bytes = 0
