"""Ranks, resumed runs, searches and series as sections of a comparison."""

import json

import pytest
from page_reader import panel, read_page
from shown_runs import document_of, on_gpu, printed, rows, section_of
from synthetic_records import failed, out_of_memory, run, searched

from ampsweep.config.modes import arm_after
from ampsweep.record import write_atomically
from ampsweep.record.batch_search import BatchSearch, PredictedBatch
from ampsweep.record.history import HISTORY_NAME, history_line
from ampsweep.record.sections import RankFigures, RecordedDtypes, StepPrediction
from ampsweep.report.compare import compare_directories
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.data_formats import as_json
from ampsweep.report.html import html
from ampsweep.report.markdown import blocks_as_markdown, markdown
from ampsweep.report.run_summary import run_document

AUTOCAST = "amp_bf16+mixed_precision=autocast"
FRESH = "the checkpoint has no GradScaler state; a fresh one starts at scale 65536"


def on_ranks(arm, seed, strategy, num_ranks=2):
    """A run of a strategy: FSDP2's takes half the memory and a quarter more time; the last rank is the fullest."""
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


def test_ranks_and_strategies(golden):
    arms = {"ddp": ("fp32", "amp_bf16"), "fsdp2": ("fp32", "amp_bf16", AUTOCAST)}
    document = document_of(
        [on_ranks(arm, seed, strategy) for seed in range(3) for strategy in arms for arm in arms[strategy]]
    )
    (fsdp2,) = (card for card in section_of(document, "verdict").blocks[1:] if "fsdp2" in card.title)
    (ranks,) = (block for block in fsdp2.blocks if getattr(block, "title", "") == "Ranks")
    dtypes = section_of(document, "runs").blocks[1]
    golden("ranks.md", blocks_as_markdown([ranks, section_of(document, "series"), dtypes]))
    fullest = "rank 1 is the fullest, with a peak of 1.50 GiB, 512 MiB more than the emptiest"
    for text in (html(document), printed(document), as_json(document)):
        assert fullest in text
    text = printed(run_document(*on_ranks("fp32", 0, "fsdp2")))
    for line in ("fsdp2, 2 ranks, 16 samples a step", "compute float32, parameters float32", fullest, "cuda:1"):
        assert line in text
    assert " rank" not in markdown(document_of([on_gpu(arm, 0) for arm in ("fp32", "amp_bf16")]))


def test_a_table_of_many_ranks_has_the_first():
    document = document_of([on_ranks("fp32", 0, "ddp", num_ranks=1024)])
    numbers = [row["rank"] for row in rows(document, "ranks")]
    assert (len(numbers), numbers[0], numbers[-1]) == (16, "0", "15")
    assert f"{1024 - 16} more in the records." in printed(document)


def test_runs_saved_in_one_precision_and_resumed_in_another(tmp_path, golden):
    def leave(arm, seed, losses, **more):
        directory, record = run(arm, seed, pair_key=f"{seed}", **more)
        place = tmp_path / directory.name
        place.mkdir()
        record.write(place)
        write_atomically(place / HISTORY_NAME, "".join(map(history_line, losses)))

    for seed in range(3):
        for arm in ("fp32", "amp_fp16"):
            leave(arm, seed, [{"step": 21, "train/loss": 3.0 + seed / 8}, {"step": 40}], directory=f"{arm}-{seed}")
        for saved_in, arm, jump, more, notes in (
            ("fp32", "fp32", 0.0, {}, []),
            ("fp32", "amp_fp16", 2**-10, {"amp/skipped_steps": 2.0}, [FRESH]),
            ("amp_fp16", "fp32", 0.125, {}, []),
        ):
            origin = {"from_step": 20, "saved_in": saved_in, "saved_by": f"{saved_in}-{seed}", "notes": notes}
            row = {"step": 21, "train/loss": 3.0 + seed / 8 + jump, **more}
            name = f"resumed-{arm}-{saved_in}-{seed}"
            leave(arm_after(arm, saved_in, 20), seed, [row, {"step": 40}], attempts=[origin], directory=name)
    document = comparison_document(compare_directories([tmp_path]), tmp_path)
    golden("resumed.md", blocks_as_markdown([section_of(document, "resumed")]))
    assert FRESH in " ".join(printed(document).split())
    (workload,) = json.loads(as_json(document))["workloads"]
    found = {(resumed["saved_in"], resumed["resumed_in"]): resumed for resumed in workload["resumed"]}
    jumped = found["fp32", "amp_fp16"]
    assert jumped["loss_jump"] == {"mean": 2**-10, "n": 3, "sd": 0.0}
    assert (jumped["step"], jumped["skipped_steps"], jumped["num_runs"]) == (20, 6, 3)


def test_searches_for_the_largest_batch(golden):
    fp32 = searched("fp32", 4, out_of_memory(5), samples_per_sec=150.0, predicted=PredictedBatch(batch_size=5))
    parts = {"parameters": 400 * 2**20, "activations": 600 * 2**20}
    peak = parts | {"activations": 590 * 2**20}
    fp32[1].prediction = StepPrediction(peak_bytes=990 * 2**20, peak=peak, error_pct=-1.0)
    fp32[1].summary |= {f"memory/{category}_gib": size / 2**30 for category, size in parts.items()}
    refused = PredictedBatch(refused="aten.nonzero depends on values")
    begun = BatchSearch(limit=65536, first=1, stride=1)
    entries = [
        fp32,
        searched("amp_bf16", 6, out_of_memory(7), samples_per_sec=300.0, predicted=refused),
        failed("tf32", 0, "unsupported", "tf32 needs a GPU", batch_search=begun, facts={"model_size": None}),
    ]
    document = document_of(entries)
    sections = [section_of(document, key) for key in ("largest-batch", "problems")]
    golden("searches.md", blocks_as_markdown(sections))
    text = " ".join(printed(document).split())
    assert "No runs to compare" not in text
    assert "parity" not in markdown(document), "nothing was compared with a margin"
    assert document.summary["verdict"] in text
    assert "recommended_arm" not in document.summary
    beside = document_of([run("fp32"), run("amp_bf16"), *entries])
    assert len(rows(beside, "arms")) == 2
    assert "On this device: fp32 up to batch 4" in printed(beside)
    plain = markdown(document_of([run("fp32"), run("amp_bf16")]))
    assert "argest batch" not in plain
    assert "resumed in another" not in plain


@pytest.fixture
def sizes():
    speedups = {1023: [1.0, 1.1, 1.05], 1024: [2.0, 2.1, 2.05], 511: [1.4, 1.6, 1.5], 100: [1.0] * 3}
    entries = []
    for hidden, of_size in speedups.items():
        for seed, speedup in enumerate(of_size):
            for arm, step_ms in (("fp32", 100.0), ("amp_bf16", 100.0 / speedup)):
                directory, record = on_gpu(arm, seed, step_ms=step_ms, pair_key=f"{hidden} {seed}")
                record.config["model"] = {"hidden_size": hidden}
                record.identity.model_size = hidden**2
                entries.append((directory.with_name(f"{arm}-{hidden}-s{seed}"), record))
    return entries


def test_effects_over_a_size_have_their_intervals(sizes):
    document = document_of(sizes)
    page = read_page(html(document))
    element, figure = panel(page, "speedup-against-size")
    (line,) = figure["traces"]
    assert (line["meta"]["arm"], line["x"]) == ("amp_bf16", [100, 511, 1023, 1024])
    assert line["y"] == pytest.approx([1.0, 1.4978, 1.0492, 2.0496], rel=1e-3)
    low, high = line["y"][-1] - line["error_y"]["arrayminus"][-1], line["y"][-1] + line["error_y"]["array"][-1]
    assert (low, high) == pytest.approx((1.931, 2.176), rel=1e-3)
    assert line["hovertext"][-1] == "1024: 2.05x [1.93, 2.18]"
    axes = [figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    assert axes == ["model.hidden_size", "step time, baseline over arm (x)"]
    assert figure["layout"]["xaxis"]["ticktext"] == ["100", "511", "1023", "1024"]
    assert element.one("table").rows()[-1] == {"model.hidden_size": "1024", "amp_bf16": "2.05x [1.93, 2.18]"}
    _, saved = panel(page, "memory-saved-against-size")
    assert saved["layout"]["yaxis"]["title"]["text"] == "peak allocated saved (%)"
    assert saved["traces"][0]["y"] == pytest.approx([100 * (3.125 - 2.875) / 3.125] * 4, rel=1e-3)
    assert "Against model.hidden_size" in markdown(document)


def test_panels_over_a_size_without_figures_are_left_out(sizes):
    for _, record in sizes:
        record.contamination.verdict, record.contamination.reasons = "contaminated", ["a neighbour"]
    section = read_page(html(document_of(sizes))).one("section", id="series")
    assert not section.all("figure", data_key="speedup-against-size")
    assert section.all("figure", data_key="memory-saved-against-size")
