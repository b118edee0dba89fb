"""`comparison.json` as others read it: strict JSON with a fixed order of keys."""

import json

import pytest
from synthetic_records import out_of_memory, run, searched, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.report.comparison_json import comparison_json

ESTIMATE = "value n low high exact"
KEYS = {
    "": "schema baseline margin_pct goal workloads searches sizes seams notes omissions",
    "goal": "objective memory_gib",
    "workloads": "title facts arms ranks verdict conclusion runs",
    "workloads.arms": (
        "arm is_baseline num_runs num_pairs num_completed_pairs num_expected_pairs num_without_partner "
        "num_contaminated statuses num_timed num_unchecked step_ms num_operators us_per_operator limits "
        "within_run speedup peak_memory_bytes predicted_memory_bytes prediction_error_pct unvouched "
        "memory_saved_bytes memory_saved_pct val_loss loss_gap loss_gap_pct val_accuracy "
        "autocast_penalty skipped_steps baseline_there dtypes casts ranks notes"
    ),
    "workloads.arms.speedup": ESTIMATE,
    "workloads.arms.memory_saved_bytes": ESTIMATE,
    "workloads.arms.memory_saved_pct": ESTIMATE,
    "workloads.arms.loss_gap": ESTIMATE,
    "workloads.arms.val_loss": "mean n sd",
    "workloads.arms.limits": "kind step_ms launch_ms num_operators us_per_operator min_us_per_operator text",
    "workloads.arms.statuses": "completed",
    "workloads.arms.dtypes": "",
    "workloads.verdict": "recommendation arms reasons front steps pitfalls",
    "workloads.verdict.recommendation": "arm sentence goes_by evidence standings to_decide",
    "workloads.verdict.recommendation.standings": "arm standing reason",
    "workloads.verdict.arms": "arm withheld judgements parities waterfall time_to_loss",
    "workloads.verdict.arms.judgements": "speed speed_text memory memory_text parity parity_text summary brief",
    "workloads.verdict.arms.parities": (
        "metric verdict n gap low high margin margin_pct gap_sd baseline_sd power further_seeds not_worse text "
        "settled_by short"
    ),
    "workloads.verdict.arms.waterfall": "baseline_bytes arm_bytes steps seed same_in_all_pairs eager",
    "workloads.verdict.arms.waterfall.steps": "category baseline_bytes arm_bytes change_bytes",
    "workloads.verdict.reasons": "kind arm text evidence",
    "workloads.verdict.reasons.evidence": "perf/step_ms num_operators",
    "workloads.verdict.front": "cost arms without sentence",
    "workloads.verdict.front.arms": "arm cost cost_ratio peak_bytes loss_gap loss beaten",
    "workloads.verdict.front.arms.cost_ratio": ESTIMATE,
    "workloads.verdict.front.arms.loss_gap": ESTIMATE,
    "workloads.verdict.front.arms.beaten": "by worse_in",
    "workloads.conclusion": "sentence arms cautions",
    "workloads.conclusion.arms": "arm withheld text",
    "workloads.runs": "directory run_id arm seed status error oom not_paired contaminated tracked_at ranks",
    "searches": "title facts memory_limit_bytes arms sentence runs",
    "searches.arms": (
        "arm is_baseline num_runs status batch_size predicted_batch_size times_baseline bound why samples_per_sec "
        "throughput_ratio peak_memory_bytes predicted_memory_bytes prediction_error_pct why_unpredicted probes notes"
    ),
    "searches.arms.probes": "batch_size outcome peak_bytes oom error",
    "searches.arms.probes.oom": "phase step requested_bytes in_use_bytes limit_bytes told",
    "searches.runs": "directory run_id arm seed status error oom not_paired contaminated tracked_at ranks",
}


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


def read(entries):
    text = comparison_json(compare(entries, baseline="fp32", margin_pct=1.0))
    return json.loads(text, parse_constant=refuse_constant)


def keys(value, place=""):
    """The keys of every object by its place, in their order."""
    found = {}
    if isinstance(value, dict):
        found[place] = " ".join(value)
        for key, inner in value.items():
            found = keys(inner, f"{place}.{key}".lstrip(".")) | found
    elif isinstance(value, list):
        for inner in value:
            found = keys(inner, place) | found
    return found


@pytest.fixture
def content():
    memory = {"memory": {"peak": {"activations": 2**20}}}
    return read(
        [
            *sweep("fp32", [6.0, 6.1, 6.3], **memory),
            *sweep("amp_bf16", [5.0, 5.1, 5.3], **memory),
            searched("fp32", 4, out_of_memory(5)),
        ]
    )


def test_every_object_has_its_keys_in_their_order(content):
    found = keys(content)
    assert {place: of for place, of in found.items() if not place.endswith("facts")} == KEYS
    assert content["schema"] == 3


def test_figures_and_the_sentences_of_them_stand_together(content):
    (workload,) = content["workloads"]
    assert workload["arms"][1]["speedup"]["n"] == 3
    assert workload["verdict"]["recommendation"]["sentence"].startswith("Not decidable yet: ")
    assert content["searches"][0]["arms"][0]["probes"][-1]["oom"]["phase"] == "backward"


def test_what_was_not_measured_is_null():
    (workload,) = read([run("fp32", step_ms=None)])["workloads"]
    assert workload["arms"][0]["step_ms"] is None
