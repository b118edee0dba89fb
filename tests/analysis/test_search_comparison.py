"""Searches for the largest batch, arm by arm (`golden/searches.md`)."""

from pathlib import Path

from synthetic_records import UNKNOWN, contaminated, document, failed, figures, out_of_memory, run, searched

from ampsweep.analysis.comparison import compare
from ampsweep.records.batch_search import BatchSearch, PredictedBatch, Probe
from ampsweep.records.outcome import OutOfMemory

REFUSED = Probe(batch_size=5, outcome="refused", error="data=digits: the batch is larger than the data.")
BEGUN = {"batch_search": BatchSearch(limit=65536, first=1, stride=1), "facts": {"model_size": None}}
NOT_EVEN_ONE = searched("amp_bf16", 0, out_of_memory(1), status="oom", error="no memory", oom=out_of_memory(1).oom)
LIMITED = {"config": {"trainer": {"memory_limit_gib": 0.0625}}}
UNPREDICTED = {"predicted": PredictedBatch(refused="aten.nonzero depends on values")}
GUESS = {"predicted": PredictedBatch(batch_size=5, unvouched=["mine.op"])}
AT_BUILD = Probe(batch_size=7, outcome="oom", oom=OutOfMemory(phase="build"))
DISTURBED = {"contamination": contaminated("amp_bf16")[1].contamination}


def fp32(seed=0, **more):
    return searched("fp32", 4, out_of_memory(5), seed, **more)


def bf16(seed=0, **more):
    return searched("amp_bf16", 6, out_of_memory(7), seed, **more)


def over_seeds():
    speeds = ((150.0, 300.0), (151.0, 305.0), (149.0, 297.0))
    both = ((fp32(n, samples_per_sec=of), bf16(n, samples_per_sec=by)) for n, (of, by) in enumerate(speeds))
    return [entry for entries in both for entry in entries]


def repeated():
    directory, record = bf16(samples_per_sec=300.0)
    return [fp32(), bf16(samples_per_sec=100.0), (directory.with_name("again"), record)]


CASES = {
    "within a limit": [bf16(samples_per_sec=300.0, **LIMITED), fp32(samples_per_sec=150.0, **LIMITED)],
    "other bounds": [searched("fp32", 4, REFUSED, **UNPREDICTED), searched("amp_bf16", 6, None, **UNPREDICTED)],
    "not even 1": [fp32(), NOT_EVEN_ONE, failed("tf32", 0, "unsupported", "tf32 needs a GPU.", **BEGUN)],
    "no reason": [fp32(), failed("amp_fp16", 0, "interrupted", **BEGUN)],
    "near the limit": [fp32(), searched("amp_bf16", 6, AT_BUILD, summary={"memory/num_refused": 12}, **DISTURBED)],
    "over seeds": over_seeds(),
    "repeated": repeated(),
    "different answers": [fp32(), fp32(1), bf16(), searched("amp_bf16", 4, out_of_memory(5), 1)],
    "predicted": [
        fp32(prediction={"peak_bytes": 990, "error_pct": -1.0}, **GUESS),
        fp32(1, prediction={"peak_bytes": 1000, "error_pct": 0.0}),
        searched("amp_bf16", 6, None, **UNPREDICTED),
        searched("pure_bf16", 8, None),
    ],
    "a small step, unchecked": [fp32(), searched("tf32", 6, out_of_memory(7), step_ms=4.0, **UNKNOWN)],
}


def test_searches(golden):
    searches = {}
    for name, entries in CASES.items():
        (searches[name],) = compare(entries, baseline="fp32", margin_pct=1.0).searches
        assert not {"batch_size"} & {*searches[name].facts}
    arms = {f"{name}, {arm.arm}": arm for name, of in searches.items() for arm in of.arms}
    text = document(
        answer={name: of.sentence for name, of in searches.items()},
        heading={name: of.heading for name, of in searches.items()},
        lines={f"{name}, {number}": line for name, of in searches.items() for number, line in enumerate(of.lines)},
        figures={name: figures(arm, without=("arm", "probes", "refusing", "notes")) for name, arm in arms.items()},
    )
    golden("searches.md", text)
    assert [probe.batch_size for probe in arms["predicted, fp32"].probes] == [1, 2, 3, 4, 5]


def test_searches_of_each_limit_are_a_comparison_of_their_own():
    entries = [run("fp32"), run("amp_bf16"), fp32()]
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    (workload,) = comparison.workloads
    assert [entry.run_id for entry in workload.runs] == [record.run_id for _, record in entries[:2]]
    assert [entry.run_id for entry in comparison.searches[0].runs] == [entries[2][1].run_id]
    low, high = (searched("fp32", 4, None, config={"trainer": {"memory_limit_gib": limit}}) for limit in (0.5, 1.0))
    high[1].pair_key = "another limit"
    searches = compare([low, (Path("b"), high[1])], baseline="fp32", margin_pct=1.0).searches
    limits = [(search.title, search.memory_limit_bytes) for search in searches]
    assert limits == [("trainer.memory_limit_gib 0.5", 2**29), ("trainer.memory_limit_gib 1.0", 2**30)]
