from pathlib import Path

from synthetic_records import contaminated, document, failed, out_of_memory, run, searched

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.run_findings import Contaminated
from ampsweep.analysis.search_comparison import UnvouchedBatch
from ampsweep.record.batch_search import BatchSearch, PredictedBatch, Probe
from ampsweep.record.outcome import OutOfMemory

REFUSED = Probe(batch_size=5, outcome="refused", error="data=digits: the batch is larger than the data.")
BEGUN = {"batch_search": BatchSearch(limit=65536, first=1, stride=1), "facts": {"model_size": None}}
NOT_EVEN_ONE = searched("amp_bf16", 0, out_of_memory(1), status="oom", error="no memory", oom=out_of_memory(1).oom)


def found(*entries):
    (search,) = compare(entries, baseline="fp32", margin_pct=1.0).searches
    return search, {arm.arm: arm for arm in search.arms}


def test_an_arm_is_held_against_the_baseline():
    limited = {"trainer": {"memory_limit_gib": 0.0625}}
    search, arms = found(
        searched("amp_bf16", 6, out_of_memory(7), samples_per_sec=300.0, config=limited),
        searched("fp32", 4, out_of_memory(5), samples_per_sec=150.0, config=limited),
    )
    assert list(arms) == ["fp32", "amp_bf16"], "the baseline first"
    bf16 = arms["amp_bf16"]
    assert (bf16.batch_size, bf16.times_baseline, bf16.bound, bf16.statuses) == (6, 1.5, "memory", {"completed": 1})
    assert (bf16.samples_per_sec, bf16.throughput_ratio.value, bf16.throughput_ratio.n) == (300.0, 2.0, 1)
    assert bf16.refusing == out_of_memory(7)
    assert [probe.batch_size for probe in bf16.probes] == [1, 2, 3, 4, 5, 6, 7]
    assert arms["fp32"].times_baseline is arms["fp32"].throughput_ratio is None
    assert search.memory_limit_bytes == 64 * 2**20
    assert "batch_size" not in {*search.facts, *search.title.split()}


def test_throughputs_are_compared_over_seeds_and_repeats():
    def throughput(**speeds):
        every = ((arm, seed, speed) for arm, of in speeds.items() for seed, speed in enumerate(of))
        return [searched(arm, 4, out_of_memory(5), seed, samples_per_sec=speed) for arm, seed, speed in every]

    bf16 = found(*throughput(fp32=(150.0, 151.0, 149.0), amp_bf16=(300.0, 305.0, 297.0)))[1]["amp_bf16"]
    assert (bf16.throughput_ratio.interval is not None, bf16.num_runs) == (True, 3)
    (directory, record), *entries = throughput(amp_bf16=(100.0,), fp32=(100.0,)) + throughput(amp_bf16=(300.0,))
    bf16 = found((directory.with_name("again"), record), *entries)[1]["amp_bf16"]
    assert (bf16.throughput_ratio.value, bf16.throughput_ratio.n) == (2.0, 1)


def test_predictions_stand_beside_what_was_found():
    guess = PredictedBatch(batch_size=5, unvouched=["mine.op"])
    _, arms = found(
        searched("fp32", 4, out_of_memory(5), predicted=guess, prediction={"peak_bytes": 990, "error_pct": -1.0}),
        searched("fp32", 4, out_of_memory(5), 1, prediction={"peak_bytes": 1000, "error_pct": 0.0}),
        searched("amp_bf16", 6, None, predicted=PredictedBatch(refused="aten.nonzero depends on values")),
        searched("pure_bf16", 8, None),
    )
    assert [arm.predicted_batch_size for arm in arms.values()] == [5, None, None]
    assert [arm.predicted_memory_bytes for arm in arms.values()] == [995.0, None, None]
    assert [arm.prediction_error_pct for arm in arms.values()] == [-0.5, None, None]
    assert [arm.why_unpredicted for arm in arms.values()] == [None, "aten.nonzero depends on values", None]
    assert arms["fp32"].notes == (UnvouchedBatch(operators=("mine.op",)),)


def test_without_a_batch_bounded_by_memory_there_is_no_ratio():
    _, arms = found(searched("fp32", 4, REFUSED), searched("amp_bf16", 6, None))
    of = {arm.arm: (arm.bound, arm.times_baseline, arm.refusing, arm.limit) for arm in arms.values()}
    assert of == {"fp32": ("refused", None, REFUSED, None), "amp_bf16": ("limit", None, None, 65536)}
    unsupported = failed("tf32", 0, "unsupported", "tf32 needs a GPU.", **BEGUN)
    _, arms = found(searched("fp32", 4, out_of_memory(5)), NOT_EVEN_ONE, unsupported)
    assert (arms["amp_bf16"].batch_size, arms["amp_bf16"].times_baseline) == (0, None)
    tf32 = arms["tf32"]
    assert (tf32.batch_size, tf32.outcome, tf32.error) == (None, "unsupported", "tf32 needs a GPU")


def test_disturbed_and_limited_trainings_are_noted():
    unknown = {"verdict": "unknown", "reasons": ["nothing tells"]}
    _, arms = found(
        searched("fp32", 4, out_of_memory(5)),
        searched("amp_bf16", 6, out_of_memory(7), contamination=contaminated("amp_bf16")[1].contamination),
        searched("tf32", 6, out_of_memory(7), step_ms=4.0, contamination=unknown),
    )
    bf16 = arms["amp_bf16"]
    assert (bf16.batch_size, bf16.samples_per_sec, bf16.throughput_ratio) == (6, None, None), "its batch counts"
    assert bf16.notes == (Contaminated(seeds=(0,), cause="other processes kept 1.0 of 2 cores busy"),)
    (limited,) = arms["tf32"].notes
    assert [limit.kind() for limit in limited.limits] == ["small_step"]
    assert arms["fp32"].notes == ()


def test_searches_of_each_limit_are_a_comparison_of_their_own():
    entries = [run("fp32"), run("amp_bf16"), searched("fp32", 4, out_of_memory(5))]
    comparison = compare(entries, baseline="fp32", margin_pct=1.0)
    (workload,) = comparison.workloads
    assert [entry.run_id for entry in workload.runs] == [record.run_id for _, record in entries[:2]]
    assert [entry.run_id for entry in comparison.searches[0].runs] == [entries[2][1].run_id]
    low, high = (searched("fp32", 4, None, config={"trainer": {"memory_limit_gib": limit}}) for limit in (0.5, 1.0))
    high[1].pair_key = "another limit"
    searches = compare([low, (Path("b"), high[1])], baseline="fp32", margin_pct=1.0).searches
    limits = [(search.title, search.memory_limit_bytes) for search in searches]
    assert limits == [("trainer.memory_limit_gib 0.5", 2**29), ("trainer.memory_limit_gib 1.0", 2**30)]


def test_sentences(golden):
    limited = {"trainer": {"memory_limit_gib": 0.0625}}
    unpredicted = {"predicted": PredictedBatch(refused="aten.nonzero depends on values")}
    at_build = Probe(batch_size=7, outcome="oom", oom=OutOfMemory(phase="build"))
    strained = searched("amp_bf16", 6, at_build, contamination=contaminated("amp_bf16")[1].contamination)
    strained[1].summary |= {"memory/num_refused": 12}
    fp32 = searched("fp32", 4, out_of_memory(5))
    cases = {
        "within a limit": [
            searched("amp_bf16", 6, out_of_memory(7), samples_per_sec=300.0, config=limited),
            searched("fp32", 4, out_of_memory(5), samples_per_sec=150.0, config=limited),
        ],
        "other bounds": [searched("fp32", 4, REFUSED, **unpredicted), searched("amp_bf16", 6, None, **unpredicted)],
        "not even 1": [fp32, NOT_EVEN_ONE, failed("tf32", 0, "unsupported", "tf32 needs a GPU.", **BEGUN)],
        "no reason": [fp32, failed("amp_fp16", 0, "interrupted", **BEGUN)],
        "near the limit": [fp32, strained],
    }
    searches = {name: found(*entries)[0] for name, entries in cases.items()}
    text = document(
        answer={name: of.sentence for name, of in searches.items()},
        heading={name: of.heading for name, of in searches.items()},
        lines={f"{name}, {number}": line for name, of in searches.items() for number, line in enumerate(of.lines)},
    )
    golden("searches.md", text)
