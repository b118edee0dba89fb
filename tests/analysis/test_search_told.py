"""What is said of the largest batches that train."""

import pytest
from synthetic_records import contaminated, failed, out_of_memory, searched

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.run_findings import Contaminated
from ampsweep.analysis.search_comparison import (
    DifferentAnswers,
    LimitedThroughput,
    UnvouchedBatch,
)
from ampsweep.analysis.step_limits import WaitForData
from ampsweep.record.batch_search import BatchSearch, PredictedBatch, Probe
from ampsweep.record.outcome import OutOfMemory

LIMITED = {"trainer": {"memory_limit_gib": 0.0625}}
REFUSED = Probe(batch_size=5, outcome="refused", error="data=digits: the batch is larger than the data.")
BEGUN = {"batch_search": BatchSearch(limit=65536, first=1, stride=1), "facts": {"model_size": None}}


def found(*entries):
    (search,) = compare(entries, baseline="fp32", margin_pct=1.0).searches
    return search


def test_the_answer_of_every_arm_within_a_limit():
    search = found(
        searched("amp_bf16", 6, out_of_memory(7), samples_per_sec=300.0, config=LIMITED),
        searched("fp32", 4, out_of_memory(5), samples_per_sec=150.0, config=LIMITED),
    )
    assert search.sentence == (
        "Within 64.0 MiB: fp32 up to batch 4, amp_bf16 up to batch 6 (1.50x, 2.00x the throughput, n=1)."
    )
    assert search.heading == f"{search.title}, within 64.0 MiB"


def test_answers_that_memory_does_not_bound():
    search = found(searched("fp32", 4, REFUSED), searched("amp_bf16", 6, None))
    assert search.sentence == (
        "On this device: fp32 up to batch 4, as larger ones are refused, amp_bf16 up to batch 6 or more "
        "(1.00x the throughput, n=1)."
    )
    assert search.heading == search.title


def test_not_even_one_and_no_answer():
    lost = out_of_memory(1)
    search = found(
        searched("fp32", 4, out_of_memory(5)),
        searched("amp_bf16", 0, lost, status="oom", error=lost.error, oom=lost.oom),
        failed("tf32", 0, "unsupported", "tf32 needs a GPU.", **BEGUN),
    )
    assert search.sentence == (
        "On this device: fp32 up to batch 4, amp_bf16 not even with a batch of 1; tf32: unsupported."
    )


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            searched("fp32", 6, out_of_memory(7)),
            "batch 7 runs out of memory in backward: 3.00 MiB asked for with 62.0 MiB in use",
        ),
        (
            searched("fp32", 6, Probe(batch_size=7, outcome="oom", oom=OutOfMemory(phase="build"))),
            "batch 7 runs out of memory",
        ),
        (searched("fp32", 4, REFUSED), "batch 5 is refused: data=digits: the batch is larger than the data"),
        (searched("fp32", 6, None), "batch 65536 trains, and max_batch.limit ends the search there"),
        (failed("fp32", 0, "unsupported", "fp32 needs a GPU.", **BEGUN), "unsupported: fp32 needs a GPU"),
        (failed("fp32", 0, "interrupted", **BEGUN), "interrupted"),
    ],
    ids=["memory", "memory at build", "refused", "limit", "no answer", "no reason"],
)
def test_why_there_is_no_larger_batch(entry, text):
    (arm,) = found(entry).arms
    assert arm.bound_text == text


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (
            Contaminated(seeds=(2,), cause="the GPU was hot"),
            "contaminated, hence no speed to compare: the GPU was hot (seed 2)",
        ),
        (
            LimitedThroughput(limits=(WaitForData(wait_ms=30.0, step_ms=100.0),)),
            "its throughput is limited by waiting for data, 30.0 ms a step on average, 30% of it",
        ),
        (DifferentAnswers(batch_sizes=(4, 6)), "its searches differ: batches 4, 6"),
        (
            UnvouchedBatch(operators=("mine.a", "mine.b")),
            "its batch was predicted; not vouched for: the memory of mine.a, mine.b",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else value.kind(),
)
def test_every_note_on_a_search(note, text):
    assert note.sentence == text


def test_the_lines_below_the_table_name_each_arm():
    untold = PredictedBatch(refused="aten.nonzero depends on values")
    disturbed = contaminated("amp_bf16")[1].contamination
    lines = found(
        searched("fp32", 4, None, predicted=untold),
        searched("amp_bf16", 6, None, predicted=untold, contamination=disturbed),
    ).lines
    assert [line.split(": ")[0] for line in lines] == ["fp32", "amp_bf16", "fp32, amp_bf16", "amp_bf16"]
    assert lines[2] == "fp32, amp_bf16: nothing was predicted: aten.nonzero depends on values"


def test_a_throughput_near_the_limit_is_told_as_such():
    entry, calm = searched("amp_bf16", 6, out_of_memory(7)), searched("fp32", 4, out_of_memory(5))
    calm[1].summary |= {"memory/num_refused": 0}
    entry[1].summary |= {"memory/num_refused": 12}
    lines = [line for line in found(calm, entry).lines if "throughput" in line]
    assert lines == [
        "amp_bf16: the allocator refused 12 requests, so that slower algorithms ran: a somewhat "
        "smaller batch may have a higher throughput"
    ]
