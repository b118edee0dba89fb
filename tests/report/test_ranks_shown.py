"""Runs of several ranks in every document: the ranks, the dtypes, and strategies beside each other."""

import io

import pytest
from page_reader import panel, read_page
from rich.console import Console
from shown_runs import dashboard_of, on_gpu

from ampsweep.record.parts import RankFigures, RecordedDtypes
from ampsweep.report.comparison_json import comparison_json
from ampsweep.report.console import print_comparison
from ampsweep.report.markdown import markdown
from ampsweep.report.page.document import html
from ampsweep.report.rank_tables import MAX_ROWS
from ampsweep.report.run_summary import print_run_summary
from ampsweep.report.wandb.comparison_page import comparison_page

AUTOCAST = "amp_bf16+mixed_precision=autocast"
ARMS = {"ddp": ("fp32", "amp_bf16"), "fsdp2": ("fp32", "amp_bf16", AUTOCAST)}
OF_FSDP2 = "rank 1 is the fullest, with a peak of 1.50 GiB, 512 MiB (33.3%) more than the emptiest"


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
def dashboard(entries, write, tmp_path):
    return dashboard_of(write(entries), tmp_path)


def console_text(dashboard, width=220):
    stream = io.StringIO()
    print_comparison(dashboard.comparison, Console(file=stream, width=width))
    return " ".join(stream.getvalue().split())


def test_every_document_names_the_fullest_and_the_slowest_rank(dashboard):
    documents = {
        "page": read_page(html(dashboard)).one("section", id="verdict").text,
        "console": console_text(dashboard),
        "markdown": markdown(dashboard.comparison).replace("\\", ""),
        "json": comparison_json(dashboard.comparison),
    }
    for name, text in documents.items():
        assert OF_FSDP2 in text, name
        assert "rank 0 is the slowest, with 125 ms a step; the others take as long within 5%" in text, name
        assert "the others wait for rank 1: in a step it waits 5.00 ms for them, and they up to 30.0 ms" in text, name
        assert "each rank hands 64.0 MiB of gradients to the reduction in a step" in text, name


def test_the_page_has_a_table_of_the_ranks_of_each_arm(dashboard):
    tables = [one for one in read_page(html(dashboard)).all("table") if one.one("caption").text == "Ranks"]
    of_ddp = tables[0].rows()
    assert [(row["arm"], row["rank"], row["device"]) for row in of_ddp] == [
        (arm, str(rank), f"cuda:{rank}") for arm in ARMS["ddp"] for rank in (0, 1)
    ]
    assert of_ddp[1] == {
        "arm": "fp32",
        "rank": "1",
        "host": "node",
        "device": "cuda:1",
        "peak memory": "3.00 GiB",
        "parameters": "256 MiB",
        "step time": "99.0 ms",
        "waiting for ranks": "5.00 ms",
        "": "fullest, waited for",
    }


def test_strategies_stand_beside_each_other(dashboard):
    section = read_page(html(dashboard)).one("section", id="against-size")
    assert section.one("h2").text == "Side by side"
    rows = section.all("table")[0].rows()
    assert [(row["arm"], row["strategy"]) for row in rows] == [
        ("fp32", "ddp"),
        ("fp32", "fsdp2"),
        ("amp_bf16", "ddp"),
        ("amp_bf16", "fsdp2"),
        (AUTOCAST, "fsdp2"),
    ]
    assert rows[1] == {
        "arm": "fp32",
        "strategy": "fsdp2",
        "peak memory": "1.50 GiB",
        "spread": "512 MiB",
        "step time": "125 ms",
        "waiting": "30.0 ms",
        "reduced a step": "64.0 MiB",
        "val loss": "2.0100",
        "throughput of ddp": "0.800x",
        "memory saved against ddp": "50.0%",
        "loss gap against ddp": "0",
    }
    assert rows[4]["memory saved against ddp"] == "50.0%", "of DDP's amp_bf16, which casts by autocast, too"
    assert f"{AUTOCAST}: fsdp2 against amp_bf16 of ddp" in section.text


def test_panels_over_words_have_a_place_for_each(dashboard):
    _, figure = panel(read_page(html(dashboard)), "a0-memory-against-size")
    axis = figure["layout"]["xaxis"]
    assert (axis["tickvals"], axis["ticktext"], axis["title"]["text"]) == ([0, 1], ["ddp", "fsdp2"], "strategy")
    assert {trace["mode"] for trace in figure["traces"]} == {"markers"}
    places = {trace["meta"]["arm"]: trace["x"] for trace in figure["traces"]}
    assert [round(place) for place in places["fp32"]] == [0, 1]
    assert len({trace["x"][-1] for trace in figure["traces"]}) == 3, "arms beside each other"
    for key in ("loss-side-by-side", "step-time-side-by-side", "reduced-against-size", "speedup-against-size"):
        panel(read_page(html(dashboard)), f"a0-{key}")


def test_five_dtypes_and_what_casts_tell_strategies_apart(dashboard):
    page = read_page(html(dashboard))
    (table,) = (one for one in page.all("table") if one.one("caption").text == "The dtypes of a step")
    casts = {(row["arm"], row["parallel"]): row["cast by"] for row in table.rows()}
    assert casts == {
        ("fp32", "ddp"): "-",
        ("amp_bf16", "ddp"): "autocast",
        ("fp32", "fsdp2"): "-",
        ("amp_bf16", "fsdp2"): "policy",
        (AUTOCAST, "fsdp2"): "autocast",
    }
    five = ("compute", "parameters", "gradients", "reduction", "optimizer state")
    assert [table.rows()[1][kind] for kind in five] == ["bfloat16", *["float32"] * 4]
    assert "cast" in console_text(dashboard)


def test_of_many_ranks_a_table_has_some_and_those_that_are_named(write, tmp_path):
    shown = dashboard_of(write([on_ranks("fp32", 0, "ddp", num_ranks=1024)]), tmp_path)
    (table,) = (one for one in read_page(html(shown)).all("table") if one.one("caption").text == "Ranks")
    numbers = [row["rank"] for row in table.rows()]
    assert (len(numbers), numbers[0], numbers[-1]) == (MAX_ROWS, "0", "1023")
    assert f"{1024 - MAX_ROWS} more ranks in the records" in console_text(shown)


def test_a_page_of_one_process_has_nothing_of_ranks(write, tmp_path):
    shown = dashboard_of(write([on_gpu(arm, seed) for seed in range(3) for arm in ("fp32", "amp_bf16")]), tmp_path)
    page = read_page(html(shown))
    assert not [one for one in page.all("table") if one.one("caption").text == "Ranks"]
    assert not any(" rank" in page.one("section", id=part).text for part in ("verdict", "panels", "runs", "method"))
    assert "rank" not in console_text(shown)


def test_wandb_has_the_ranks_and_the_strategies_as_tables(dashboard, entries, tmp_path):
    page = comparison_page(dashboard, entries, group=None, html=tmp_path / "comparison.html")
    assert "sizes" not in page.tables
    strategies = page.tables["strategies"]
    rows = [dict(zip(strategies.columns, row, strict=True)) for row in strategies.rows]
    lean = next(row for row in rows if (row["strategy"], row["arm"]) == ("fsdp2", "fp32"))
    assert (lean["ranks"], lean["samples_a_step"], lean["first"]) == (2, 16, "ddp")
    assert lean["throughput"] == pytest.approx(0.8)
    ranks = page.tables["ranks"]
    assert len(ranks.rows) == 2 * 5
    assert dict(zip(ranks.columns, ranks.rows[1], strict=True))["is_fullest"] is True


def test_the_end_of_one_run_tells_its_ranks():
    directory, record = on_ranks("fp32", 0, "fsdp2")
    stream = io.StringIO()
    print_run_summary(directory, record, Console(file=stream, width=200))
    text = stream.getvalue()
    assert "parallel    fsdp2, 2 ranks, 16 samples a step" in text
    assert "dtypes      compute float32, parameters float32, gradients float32, reduction float32" in text
    assert OF_FSDP2 in text
    assert "cuda:1" in text
