"""Runs of several ranks in every document: the ranks, the dtypes, and strategies beside each other."""

import pytest
from page_reader import read_page
from shown_runs import document_of, on_gpu, printed, rows

from ampsweep.record.parts import RankFigures, RecordedDtypes
from ampsweep.report.data_formats import as_json
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.run_summary import run_document

AUTOCAST = "amp_bf16+mixed_precision=autocast"
ARMS = {"ddp": ("fp32", "amp_bf16"), "fsdp2": ("fp32", "amp_bf16", AUTOCAST)}
OF_FSDP2 = "rank 1 is the fullest, with a peak of 1.50 GiB, 512 MiB more than the emptiest"


def on_ranks(arm, seed, strategy, num_ranks=2):
    """A run of a strategy: FSDP2's takes half the memory and a quarter more time; of each the last rank is fuller."""
    share, step_ms = (1.0, 100.0) if strategy == "ddp" else (0.5, 125.0)
    directory, record = on_gpu(arm, seed, step_ms=step_ms, pair_key=f"{strategy} {num_ranks} {seed}")
    record.identity.parallel, record.identity.world_size = strategy, num_ranks
    record.identity.global_batch_size = 8 * num_ranks
    half = "bfloat16" if arm.startswith("amp") else "float32"
    record.dtypes = RecordedDtypes(
        compute=half, parameters="float32", gradients="float32", reduction="float32", optimizer_state="float32"
    )
    record.config["precision"] = {"mode": arm, "autocast": half == "bfloat16"}
    record.config["parallel"] = {"strategy": strategy, "mixed_precision": arm.partition("=")[2] or "policy"}
    record.ranks = [
        RankFigures(
            rank=rank,
            host="node",
            device=f"cuda:{rank}",
            device_name="a GPU",
            peak={"parameters": 2**28},
            peak_allocated_gib=share * (3.0 if rank == num_ranks - 1 else 2.0),
            step_ms=step_ms - rank,
            communication_ms=30.0 - 25.0 * rank if num_ranks == 2 else 10.0,
        )
        for rank in range(num_ranks)
    ]
    record.summary |= {
        "memory/peak_allocated_gib": share * 3.0,
        "memory/peak_allocated_spread_gib": share * 1.0,
        "perf/reduced_mib": 64.0,
        "perf/communication_ms": 30.0,
    }
    return directory.with_name(f"{arm}-{strategy}-{num_ranks}-s{seed}"), record


@pytest.fixture
def entries():
    return [on_ranks(arm, seed, strategy) for seed in range(3) for strategy, arms in ARMS.items() for arm in arms]


@pytest.fixture
def document(entries):
    return document_of(entries)


def test_every_format_names_the_fullest_and_the_slowest_rank(document):
    for text in (read_page(html(document)).one("section", id="verdict").text, printed(document), as_json(document)):
        assert OF_FSDP2 in text
        assert "rank 0 is the slowest, with 125 ms a step, 1.00 ms more than the fastest" in text
        assert "the others wait for rank 1: in a step it waits 5.00 ms for them, and they up to 30.0 ms" in text
        assert "each rank hands 64.0 MiB of gradients to the reduction in a step" in text


def test_the_ranks_of_each_arm_are_a_table(document):
    found = rows(document, "ranks")
    assert [(row["arm"], row["rank"], row["device"]) for row in found[:4]] == [
        (arm, str(rank), f"cuda:{rank}") for arm in ARMS["ddp"] for rank in (0, 1)
    ]
    assert found[1] | {"section": ""} == {
        "section": "",
        "arm": "fp32",
        "rank": "1",
        "host": "node",
        "device": "cuda:1",
        "peak memory": "3.00 GiB",
        "step time": "99.0 ms",
        "waiting for ranks": "5.00 ms",
        "": "fullest, waited for",
    }


def test_strategies_stand_beside_each_other(document):
    found = rows(document, "strategies")
    assert [(row["arm"], row["strategy"]) for row in found] == [
        ("fp32", "ddp"),
        ("fp32", "fsdp2"),
        ("amp_bf16", "ddp"),
        ("amp_bf16", "fsdp2"),
        (AUTOCAST, "fsdp2"),
    ]
    assert found[1] == {
        "arm": "fp32",
        "strategy": "fsdp2",
        "ranks": "2",
        "peak memory": "1.50 GiB",
        "spread": "512 MiB",
        "step time": "125 ms",
        "waiting": "30.0 ms",
        "reduced a step": "64.0 MiB",
        "val loss": "2.0100",
    }


def test_five_dtypes_and_what_casts_tell_strategies_apart(document):
    found = rows(document, "dtypes")
    assert {(row["arm"], row["parallel"]): row["cast by"] for row in found} == {
        ("fp32", "ddp"): "-",
        ("amp_bf16", "ddp"): "autocast",
        ("fp32", "fsdp2"): "-",
        ("amp_bf16", "fsdp2"): "policy",
        (AUTOCAST, "fsdp2"): "autocast",
    }
    five = ("compute", "parameters", "gradients", "reduction", "optimizer state")
    assert [found[1][kind] for kind in five] == ["bfloat16", *["float32"] * 4]


def test_of_many_ranks_a_table_has_the_first():
    document = document_of([on_ranks("fp32", 0, "ddp", num_ranks=1024)])
    numbers = [row["rank"] for row in rows(document, "ranks")]
    assert (len(numbers), numbers[0], numbers[-1]) == (16, "0", "15")
    assert f"{1024 - 16} more in the records." in printed(document)


def test_one_process_has_nothing_of_ranks():
    text = markdown(document_of([on_gpu(arm, seed) for seed in range(3) for arm in ("fp32", "amp_bf16")]))
    assert " rank" not in text


def test_the_end_of_one_run_tells_its_ranks():
    text = printed(run_document(*on_ranks("fp32", 0, "fsdp2")))
    assert "parallel fsdp2, 2 ranks, 16 samples a step" in text
    assert "dtypes compute float32, parameters float32, gradients float32, reduction float32" in text
    assert OF_FSDP2 in text
    assert "cuda:1" in text
