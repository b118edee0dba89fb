"""`experiment=max_batch`: the largest batch that really trains, and the throughput there."""

import json
import re
import signal

import pytest
from command_line import RunFiles, all_runs, only_run, only_sweep, wait_until

from ampsweep.record import RunRecord, find_records
from ampsweep.record.batch_search import PredictedBatch

LIMIT = "trainer.memory_limit_gib=0.002"
TRAINED = ("model=mlp_small", "data=synthetic", "data.in_features=32", "data.out_features=32", "data.num_batches=1")
COMMON = (*TRAINED, "device=cpu", "tracking=disabled", "trainer.log_every=5", "trainer.warmup_steps=2")
SEARCH = ("experiment=max_batch", *COMMON, "trainer.steps=12", "data.batch_size=64", LIMIT)


def by_arm(directory="outputs"):
    return {record.arm: record for _, record in find_records(only_sweep(directory)).records}


@pytest.fixture
def trains(train):
    """Whether a training alone, of this precision and batch, ends well under the limit."""

    def trains(precision, batch_size):
        ended = train(*COMMON, "trainer.steps=6", LIMIT, f"precision={precision}", f"data.batch_size={batch_size}")
        assert ended.code == 0
        run = max(all_runs("outputs/train"), key=lambda run: run.directory.stat().st_mtime_ns)
        assert run.record.status in ("completed", "oom")
        return run.record.status == "completed"

    return trains


def test_the_largest_batch_trains_and_the_next_does_not(train, trains):
    ended = train(*SEARCH, "precision=fp32,tf32,amp_bf16")
    assert ended.code == 0
    sweep = only_sweep("outputs/max_batch")
    records = by_arm("outputs/max_batch")
    assert records["tf32"].status == "unsupported"
    sizes = {}
    for arm in ("fp32", "amp_bf16"):
        record, search = records[arm], records[arm].batch_search
        assert (record.status, record.kind) == ("completed", "measured")
        size = sizes[arm] = search.largest
        assert record.identity.batch_size == record.summary["memory/largest_batch"] == size > 64
        assert search.refusing.batch_size == size + 1
        assert search.refusing.oom.limit_bytes == round(0.002 * 2**30)
        assert trains(arm, size)
        assert not trains(arm, size + 1)
        assert record.summary["perf/samples_per_sec"] > 0, "it is timed without being watched"
        assert len(search.probes) == 2, "as predicted"
        assert search.predicted.batch_size == size
    assert sizes["amp_bf16"] > sizes["fp32"]
    told = " ".join(ended.out.split())
    assert f"Within 2.05 MiB: fp32 up to batch {sizes['fp32']}, amp_bf16 up to batch {sizes['amp_bf16']} (" in told
    assert "tf32: unsupported" in told
    comparison = json.loads((sweep / "comparison.json").read_text())
    assert comparison["workloads"] == [], "its runs are compared with nothing else"
    (found,) = comparison["searches"]
    assert {arm["arm"]: arm["batch_size"] for arm in found["arms"]} == {**sizes, "tf32": None}
    assert {arm["arm"]: arm["predicted_batch_size"] for arm in found["arms"]} == {**sizes, "tf32": None}
    assert {arm["arm"]: arm["prediction_error_pct"] for arm in found["arms"]} == {
        "fp32": 0,
        "amp_bf16": 0,
        "tf32": None,
    }
    for name in ("comparison.md", "comparison.html"):
        assert found["sentence"] in (sweep / name).read_text().replace("\\", "")


def test_not_even_a_batch_of_one_is_an_outcome(train):
    ended = train("experiment=max_batch", *COMMON, "trainer.memory_limit_gib=0.0005", "precision=fp32")
    assert ended.code == 0
    record = only_run().record
    assert (record.status, record.identity.batch_size) == ("oom", 1)
    assert record.batch_search.largest == 0
    assert record.oom.limit_bytes == round(0.0005 * 2**30)
    assert "fp32 not even with a batch of 1." in ended.out


@pytest.mark.slow
def test_data_and_the_limit_of_the_search_bound_it_too(train):
    digits = ("model=mlp_small", "data=digits", *COMMON[5:], "trainer.memory_limit_gib=0.1", "precision=fp32")
    ended = train("experiment=max_batch", *digits, "trainer.steps=4", "data.batch_size=1437", "max_batch.limit=1439")
    assert ended.code == 0
    record = only_run().record
    assert record.batch_search.largest == record.identity.batch_size == 1438
    assert record.batch_search.refusing.outcome == "refused"
    assert "fp32 up to batch 1438, as larger ones are refused." in ended.out
    assert re.search(r"fp32: batch 1439 is refused: data=digits: .* 1438", " ".join(ended.out.split()))


def test_another_seed_begins_with_the_answer_of_the_first(train):
    unpredicted = ("predict.with_runs=false", "max_batch.limit=200")
    assert train(*SEARCH, "precision=fp32", "seed=0,1", *unpredicted).code == 0
    first, second = (run.record.batch_search for run in all_runs())
    assert [probe.batch_size for probe in first.probes] == [64, 128, 200]
    assert [probe.batch_size for probe in second.probes] == [200]
    assert first.predicted == second.predicted == PredictedBatch(refused="predict.with_runs=false")
    assert "fp32: nothing was predicted: predict.with_runs=false" in (only_sweep() / "comparison.md").read_text()
    assert "fp32 up to batch 200 or more." in (only_sweep() / "comparison.md").read_text()


@pytest.mark.slow
def test_an_interrupted_search_goes_on_where_it_was(start, train, tmp_path):
    started = start(*SEARCH, "precision=fp32", "predict.with_runs=false")

    def probes():
        records = list(tmp_path.rglob("run.json"))
        search = RunRecord.read(records[0].parent).batch_search if records else None
        return [] if search is None else search.probes

    wait_until(lambda: len(probes()) >= 2, "two batches were probed")
    started.signal(signal.SIGINT)
    assert started.finish().code == 1
    before = probes()
    record = only_run().record
    assert record.status == "interrupted"
    assert train(*SEARCH, "precision=fp32", f"into={only_sweep()}").code == 0
    record = only_run().record
    assert record.status == "completed"
    assert record.batch_search.probes[: len(before)] == before
    assert len({probe.batch_size for probe in record.batch_search.probes}) == len(record.batch_search.probes)
    untouched = RunFiles(only_run().directory).record
    assert train(*SEARCH, "precision=fp32", f"into={only_sweep()}").code == 0
    assert only_run().record == untouched, "what is finished is not searched again"


def test_a_dry_run_searches_nothing(train, tmp_path):
    ended = train(*SEARCH, "precision=fp32", "dry_run=true")
    assert ended.code == 0
    assert "searches its batch" in ended.out
    assert not list(tmp_path.iterdir())
