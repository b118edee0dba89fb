"""`experiment=max_batch`: the largest batch that really trains, and the throughput there."""

import json
import signal

import pytest
from command_line import all_runs, only_run, only_sweep, wait_until
from recorded_sweeps import MEMORY_LIMIT_GIB, SEARCH

from ampsweep.records.batch_search import PredictedBatch


def test_the_largest_batch_trains_and_the_next_does_not(recorded, train):
    swept = recorded("search")
    records = {run.record.arm: run.record for run in swept.runs}
    assert records["tf32"].status == "unsupported"
    sizes = {}
    for arm in ("fp32", "amp_bf16"):
        record, search = records[arm], records[arm].batch_search
        assert (record.status, record.kind) == ("completed", "measured")
        size = sizes[arm] = search.largest
        assert record.identity.batch_size == record.summary["memory/largest_batch"] == size > 64
        assert search.refusing.batch_size == size + 1
        assert search.refusing.oom.limit_bytes == round(MEMORY_LIMIT_GIB * 2**30)
        assert record.summary["perf/samples_per_sec"] > 0, "it is timed without being watched"
        assert len(search.probes) == 2, "as predicted"
        assert search.predicted.batch_size == size
    assert sizes["amp_bf16"] > sizes["fp32"]
    for batch_size, status in ((sizes["fp32"], "completed"), (sizes["fp32"] + 1, "oom")):
        alone = (*SEARCH[1:], "trainer.steps=6", f"data.batch_size={batch_size}", f"output_dir={status}")
        assert train(*alone, "predict.with_runs=false").code == 0
        assert only_run(status).record.status == status

    said = f"Within 2.05 MiB: fp32 up to batch {sizes['fp32']}, amp_bf16 up to batch {sizes['amp_bf16']} ("
    assert said in swept.ended.words
    assert "tf32: unsupported" in swept.ended.words
    comparison = json.loads((swept.directory / "comparison.json").read_text())
    assert comparison["workloads"] == [], "its runs are compared with nothing else"
    (found,) = comparison["searches"]
    keys = ("batch_size", "predicted_batch_size", "prediction_error_pct")
    assert {arm["arm"]: tuple(arm[key] for key in keys) for arm in found["arms"]} == {
        **{arm: (size, size, 0) for arm, size in sizes.items()},
        "tf32": (None, None, None),
    }
    assert found["sentence"] in (swept.directory / "comparison.md").read_text().replace("\\", "")


@pytest.mark.nightly
def test_not_even_a_batch_of_one_is_an_outcome(train):
    ended = train(*SEARCH, "trainer.memory_limit_gib=0.0005", "precision=fp32")
    assert ended.code == 0
    record = only_run().record
    assert (record.status, record.identity.batch_size, record.batch_search.largest) == ("oom", 1, 0)
    assert record.oom.limit_bytes == round(0.0005 * 2**30)
    assert "fp32 not even with a batch of 1." in ended.out


def test_another_seed_begins_with_the_answer_of_the_first(train):
    unpredicted = ("predict.with_runs=false", "max_batch.limit=100")
    assert train(*SEARCH, "precision=fp32", "seed=0,1", *unpredicted).code == 0
    first, second = (run.record.batch_search for run in all_runs())
    assert [probe.batch_size for probe in first.probes] == [64, 100]
    assert [probe.batch_size for probe in second.probes] == [100]
    assert first.predicted == second.predicted == PredictedBatch(refused="predict.with_runs=false")
    comparison = (only_sweep() / "comparison.md").read_text()
    assert "fp32: nothing was predicted: predict.with_runs=false" in comparison
    assert "fp32 up to batch 100 or more." in comparison


@pytest.mark.nightly
def test_an_interrupted_search_goes_on_where_it_was(start, train):
    started = start(*SEARCH, "precision=fp32", "predict.with_runs=false")

    def search():
        return next((run.record.batch_search for run in all_runs()), None)

    wait_until(lambda: search() is not None and len(search().probes) >= 2, "two batches were probed")
    started.signal(signal.SIGINT)
    assert started.finish().code == 1
    before, again = search().probes, (*SEARCH, "precision=fp32", f"into={only_sweep()}")
    assert only_run().record.status == "interrupted"
    assert train(*again).code == 0
    record = only_run().record
    assert (record.status, record.batch_search.probes[: len(before)]) == ("completed", before)
    assert len({probe.batch_size for probe in record.batch_search.probes}) == len(record.batch_search.probes)
    assert train(*again).code == 0
    assert only_run().record == record, "what is finished is not searched again"
