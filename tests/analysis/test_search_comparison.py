"""The largest batches that train: compared arm by arm, and mixed with no other comparison."""

import pytest
from synthetic_records import contaminated, failed, out_of_memory, run, searched

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.run_findings import Contaminated
from ampsweep.analysis.search_comparison import UnvouchedBatch
from ampsweep.record.batch_search import BatchSearch, PredictedBatch, Probe

LIMITED = {"trainer": {"memory_limit_gib": 0.0625}}


def found(entries):
    (search,) = compare(entries, baseline="fp32", margin_pct=1.0).searches
    return search, {arm.arm: arm for arm in search.arms}


def test_an_arm_is_held_against_the_baseline():
    search, arms = found(
        [
            searched("amp_bf16", 6, out_of_memory(7), samples_per_sec=300.0, config=LIMITED),
            searched("fp32", 4, out_of_memory(5), samples_per_sec=150.0, config=LIMITED),
        ]
    )
    assert list(arms) == ["fp32", "amp_bf16"], "the baseline first"
    bf16 = arms["amp_bf16"]
    assert (bf16.batch_size, bf16.times_baseline, bf16.bound, bf16.statuses) == (6, 1.5, "memory", {"completed": 1})
    assert (bf16.samples_per_sec, bf16.throughput_ratio.value, bf16.throughput_ratio.n) == (300.0, 2.0, 1)
    assert bf16.refusing == out_of_memory(7)
    assert [probe.batch_size for probe in bf16.probes] == [1, 2, 3, 4, 5, 6, 7]
    assert arms["fp32"].times_baseline is arms["fp32"].throughput_ratio is None
    assert search.memory_limit_bytes == 64 * 2**20
    assert "batch_size" not in search.facts
    assert "batch_size" not in search.title


def test_the_throughput_of_three_seeds_has_an_interval():
    speeds = [(150.0, 300.0), (151.0, 305.0), (149.0, 297.0)]
    entries = [
        searched(arm, 4, out_of_memory(5), seed, samples_per_sec=both[index])
        for seed, both in enumerate(speeds)
        for index, arm in enumerate(("fp32", "amp_bf16"))
    ]
    _, arms = found(entries)
    assert arms["amp_bf16"].throughput_ratio.interval is not None
    assert arms["amp_bf16"].num_runs == 3


def test_the_throughputs_of_repeats_are_averaged_as_in_pairs():
    entries = [searched("fp32", 4, out_of_memory(5), samples_per_sec=100.0)]
    for name, speed in (("first", 100.0), ("again", 300.0)):
        directory, record = searched("amp_bf16", 4, out_of_memory(5), samples_per_sec=speed)
        entries.append((directory.with_name(name), record))
    _, arms = found(entries)
    assert (arms["amp_bf16"].throughput_ratio.value, arms["amp_bf16"].throughput_ratio.n) == (2.0, 1)


def test_what_was_predicted_stands_beside_what_was_found():
    guess = PredictedBatch(batch_size=5, unvouched=["mine.op"])
    _, arms = found(
        [
            searched("fp32", 4, out_of_memory(5), predicted=guess, prediction={"peak_bytes": 990, "error_pct": -1.0}),
            searched("fp32", 4, out_of_memory(5), 1, prediction={"peak_bytes": 1000, "error_pct": 0.0}),
            searched("amp_bf16", 6, None, predicted=PredictedBatch(refused="aten.nonzero depends on values")),
            searched("pure_bf16", 8, None),
        ]
    )
    fp32, untold = arms["fp32"], (None, None, None)
    assert (fp32.predicted_batch_size, fp32.predicted_memory_bytes, fp32.prediction_error_pct) == (5, 995.0, -0.5)
    assert fp32.notes == (UnvouchedBatch(operators=("mine.op",)),)
    assert [arm.why_unpredicted for arm in arms.values()] == [None, "aten.nonzero depends on values", None]
    for arm in (arms["amp_bf16"], arms["pure_bf16"]):
        assert (arm.predicted_batch_size, arm.predicted_memory_bytes, arm.prediction_error_pct) == untold


def test_a_batch_that_memory_does_not_bound_gives_no_ratio():
    refused = Probe(batch_size=5, outcome="refused", error="data=digits: the batch is larger than the data.")
    _, arms = found([searched("fp32", 4, refused), searched("amp_bf16", 6, None)])
    assert (arms["fp32"].bound, arms["amp_bf16"].bound) == ("refused", "limit")
    assert arms["amp_bf16"].times_baseline is None
    assert (arms["fp32"].refusing, arms["fp32"].limit) == (refused, None)
    assert (arms["amp_bf16"].refusing, arms["amp_bf16"].limit) == (None, 65536)


def test_not_even_one_and_no_answer_are_told_apart():
    lost = out_of_memory(1)
    begun = BatchSearch(limit=65536, first=1, stride=1)
    _, arms = found(
        [
            searched("fp32", 4, out_of_memory(5)),
            searched("amp_bf16", 0, lost, status="oom", error=lost.error, oom=lost.oom),
            failed("tf32", 0, "unsupported", "tf32 needs a GPU.", batch_search=begun, facts={"model_size": None}),
        ]
    )
    assert (arms["amp_bf16"].batch_size, arms["amp_bf16"].times_baseline) == (0, None)
    tf32 = arms["tf32"]
    assert (tf32.batch_size, tf32.outcome, tf32.error) == (None, "unsupported", "tf32 needs a GPU")


def test_what_slowed_an_arm_down_takes_its_throughput_alone():
    disturbed = contaminated("amp_bf16")[1].contamination
    _, arms = found(
        [searched("fp32", 4, out_of_memory(5)), searched("amp_bf16", 6, out_of_memory(7), contamination=disturbed)]
    )
    assert (arms["amp_bf16"].batch_size, arms["amp_bf16"].samples_per_sec) == (6, None)
    assert arms["amp_bf16"].throughput_ratio is None
    (note,) = arms["amp_bf16"].notes
    assert note == Contaminated(seeds=(0,), cause="other processes kept 1.0 of 2 cores busy")


def test_what_limits_the_step_with_the_largest_batch_is_noted():
    unknown = {"verdict": "unknown", "reasons": ["nothing tells"]}
    short = {"step_ms": 4.0, "contamination": unknown}
    _, arms = found([searched("fp32", 4, out_of_memory(5)), searched("amp_bf16", 6, out_of_memory(7), **short)])
    assert arms["fp32"].notes == ()
    (limited,) = arms["amp_bf16"].notes
    assert [limit.kind() for limit in limited.limits] == ["small_step"]


def test_searches_are_in_no_other_comparison():
    entries = [run("fp32"), run("amp_bf16"), searched("fp32", 4, out_of_memory(5))]
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    (workload,) = comparison.workloads
    assert [entry.run_id for entry in workload.runs] == [record.run_id for _, record in entries[:2]]
    assert [entry.run_id for entry in comparison.searches[0].runs] == [entries[2][1].run_id]


@pytest.mark.parametrize("limits", [(0.5, 1.0)])
def test_every_limit_is_a_question_of_its_own(limits):
    entries = [
        searched("fp32", 4 + index, out_of_memory(5 + index), config={"trainer": {"memory_limit_gib": limit}})
        for index, limit in enumerate(limits)
    ]
    for index, (directory, record) in enumerate(entries):
        record.pair_key = str(index)
        entries[index] = directory.with_name(str(index)), record
    searches = compare(entries, baseline="fp32", margin_pct=1.0).searches
    assert [search.memory_limit_bytes for search in searches] == [limit * 2**30 for limit in limits]
    assert [search.title for search in searches] == [f"trainer.memory_limit_gib {limit}" for limit in limits]
