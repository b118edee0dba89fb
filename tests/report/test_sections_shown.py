"""Ranks, resumed runs, searches and series as sections of a comparison, and the summary of a single run."""

import json
import re
from itertools import product
from pathlib import Path

from page_reader import drawn, panel, read_page
from shown_diagnoses import numerics
from shown_runs import document_of, on_gpu, printed, rows, section_of, write_runs
from synthetic_records import contaminated, disproved, failed, out_of_memory, run, searched, sweep

from ampsweep.config.modes import arm_after
from ampsweep.records import write_atomically
from ampsweep.records.batch_search import BatchSearch, PredictedBatch
from ampsweep.records.history import HISTORY_NAME, history_line
from ampsweep.records.sections import RankFigures, StepPrediction
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
    half = "bfloat16" if arm.startswith("amp") else "float32"
    dtypes = dict.fromkeys(("parameters", "gradients", "reduction", "optimizer_state"), "float32") | {"compute": half}
    more = {"pair_key": f"{strategy} {num_ranks} {seed}", "dtypes": dtypes}
    _, record = on_gpu(arm, seed, step_ms=step_ms, **more)
    record.identity.parallel, record.identity.world_size = strategy, num_ranks
    record.identity.global_batch_size = 8 * num_ranks
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
    record.summary |= {"memory/peak_allocated_gib": share * 3.0, "memory/peak_allocated_spread_gib": share}
    record.summary |= {"perf/reduced_mib": 64.0, "perf/communication_ms": 30.0}
    return Path(f"{arm}-{strategy}-{num_ranks}-s{seed}"), record


def test_ranks_and_strategies(golden):
    arms = {"ddp": ("fp32", "amp_bf16"), "fsdp2": ("fp32", "amp_bf16", AUTOCAST)}
    document = document_of(
        [on_ranks(arm, seed, strategy) for seed in range(3) for strategy in arms for arm in arms[strategy]]
    )
    (fsdp2,) = (card for card in section_of(document, "verdict").blocks[1:] if "fsdp2" in card.title)
    (ranks,) = (block for block in fsdp2.blocks if getattr(block, "title", "") == "Ranks")
    dtypes = section_of(document, "runs").blocks[1]
    golden("ranks.md", blocks_as_markdown([ranks, section_of(document, "series"), dtypes]))
    for text in (html(document), printed(document), as_json(document)):
        assert "rank 1 is the fullest, with a peak of 1.50 GiB, 512 MiB more than the emptiest" in text
    golden("run_of_two_ranks.md", markdown(run_document(*on_ranks("fp32", 0, "fsdp2"))))
    assert " rank" not in markdown(document_of([on_gpu(arm, 0) for arm in ("fp32", "amp_bf16")]))


def test_a_table_of_many_ranks_has_the_first():
    document = document_of([on_ranks("fp32", 0, "ddp", num_ranks=1024)])
    assert [row["rank"] for row in rows(document, "ranks")] == [str(rank) for rank in range(16)]
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
    (jumped,) = (found for found in workload["resumed"] if found["resumed_in"] == "amp_fp16")
    assert jumped["loss_jump"] == {"mean": 2**-10, "n": 3, "sd": 0.0}
    assert (jumped["saved_in"], jumped["step"], jumped["skipped_steps"], jumped["num_runs"]) == ("fp32", 20, 6, 3)


def test_searches_for_the_largest_batch(golden):
    fp32 = searched("fp32", 4, out_of_memory(5), samples_per_sec=150.0, predicted=PredictedBatch(batch_size=5))
    peak = {"parameters": 400 * 2**20, "activations": 590 * 2**20}
    fp32[1].prediction = StepPrediction(peak_bytes=990 * 2**20, peak=peak, error_pct=-1.0)
    fp32[1].summary |= {"memory/parameters_gib": 400 / 1024, "memory/activations_gib": 600 / 1024}
    refused = PredictedBatch(refused="aten.nonzero depends on values")
    begun = BatchSearch(limit=65536, first=1, stride=1)
    entries = [
        fp32,
        searched("amp_bf16", 6, out_of_memory(7), samples_per_sec=300.0, predicted=refused),
        failed("tf32", 0, "unsupported", "tf32 needs a GPU", batch_search=begun, facts={"model_size": None}),
    ]
    document = document_of(entries)
    golden("searches.md", blocks_as_markdown([section_of(document, key) for key in ("largest-batch", "problems")]))
    text = " ".join(printed(document).split())
    assert document.summary["verdict"] in text
    assert "No runs to compare" not in text
    assert "parity" not in markdown(document), "nothing was compared with a margin"
    assert "recommended_arm" not in document.summary
    beside = document_of([run("fp32"), run("amp_bf16"), *entries])
    assert len(rows(beside, "arms")) == 2
    assert "On this device: fp32 up to batch 4" in printed(beside)
    plain = markdown(document_of([run("fp32"), run("amp_bf16")]))
    assert not re.search("argest batch|resumed in another", plain)


def test_effects_over_a_size_have_their_intervals_and_none_without_figures(golden):
    speedups = {1023: [1.0, 1.1, 1.05], 1024: [2.0, 2.1, 2.05], 511: [1.4, 1.6, 1.5], 100: [1.0] * 3}
    entries = []
    for hidden, seed in product(speedups, range(3)):
        for arm, step_ms in (("fp32", 100.0), ("amp_bf16", 100.0 / speedups[hidden][seed])):
            _, record = on_gpu(arm, seed, step_ms=step_ms, pair_key=f"{hidden} {seed}")
            record.config["model"], record.identity.model_size = {"hidden_size": hidden}, hidden**2
            entries.append((Path(f"{arm}-{hidden}-s{seed}"), record))
    document = document_of(entries)
    assert "Against model.hidden_size" in markdown(document)
    page = read_page(html(document))
    shown = [drawn(*panel(page, f"{effect}-against-size")) for effect in ("speedup", "memory-saved")]
    golden("over_a_size.txt", "\n\n".join(shown) + "\n")
    for _, record in entries:
        record.contamination.verdict, record.contamination.reasons = "contaminated", ["a neighbour"]
    section = read_page(html(document_of(entries))).one("section", id="series")
    assert not section.all("figure", data_key="speedup-against-size")
    assert section.all("figure", data_key="memory-saved-against-size")


def test_under_a_plan_the_intervals_are_shown_after_each_pair(golden, tmp_path):
    config = {"report": {"decide": True, "max_seeds": 12}}
    losses = [2.00, 2.03, 1.98, 2.01, 2.02, 1.99]
    entries = sweep("fp32", [100.0, 101.0, 99.0, 100.5, 99.5, 100.2], val_loss=losses, config=config)
    of_arms = {"amp_bf16": [0.003, -0.001, 0.004, 0.0, 0.001, 0.002], "pure_bf16": [0.05, -0.02, 0.03, 0.01]}
    for arm, gaps in of_arms.items():
        own = [loss + gap for loss, gap in zip(losses, gaps, strict=False)]
        entries += sweep(arm, [80.0, 82.0, 79.0, 81.0, 80.0, 80.5][: len(gaps)], val_loss=own, config=config)
    document = comparison_document(compare_directories([directory_of(entries, tmp_path / "planned")]), None)
    page = read_page(html(document))
    shown = [drawn(*panel(page, f"{effect}-by-pairs")) for effect in ("speedup", "loss-gap")]
    golden("narrowing.txt", "\n\n".join(shown) + "\n")
    assert document.data["max_pairs"] == 12
    for _, record in entries:
        record.config["report"]["decide"] = False
    plain = comparison_document(compare_directories([directory_of(entries, tmp_path / "plain")]), None)
    assert "by number of pairs" not in markdown(plain)
    assert plain.data["max_pairs"] is None


def directory_of(entries, directory):
    directory.mkdir()
    write_runs(entries, directory)
    return directory


def lines(entry):
    document = run_document(*entry)
    return "\n".join([document.title, *(f"{row['fact']:12} {row['value']}" for row in rows(document, "run"))])


def test_summaries_of_every_kind_of_run(golden):
    url = "https://wandb.ai/team/ampsweep/runs/a1"
    prediction = {"peak_bytes": 303 * 2**20, "error_pct": 1.0, "step_error_pct": -10.86, "least_ms": 6.1}
    prediction |= {"step_ms": 11.0, "step_ms_low": 9.5, "step_ms_high": 12.7}
    parts = {"wandb": {"url": url}, "memory": {"step": 7}, "prediction": prediction}
    whole = run("amp_fp16", 1, step_ms=12.34, peak_mib=300.0, val_loss=2.5, skipped=3, accuracy=0.97, **parts)
    whole[1].summary |= {"perf/tokens_per_sec": 41500.0, "perf/data_wait_ms": 11.6, "train/clipped_pct": 12.5}
    samples = run("fp32")
    samples[1].summary |= {"perf/samples_per_sec": 512.0, "val/autocast_penalty": 0.000123}
    samples[1].memory.kept = {"activations": 3 * 2**20, "temporary": 4}
    absent = run("fp32")
    del absent[1].summary["perf/step_ms"]
    absent[1].absent["perf/step_ms"] = "the training ended before its warm-up (10 steps and 2 s) was over"
    absent[1].absent["val/autocast_penalty"] = "the second evaluation failed: RuntimeError: no memory"
    others = [failed("amp_fp16", 0, "diverged", "the loss was nan in step [12]"), disproved("fp32")]
    others += [contaminated("fp32", 0), run("fp32", cut_short="trainer.max_seconds=20 passed")]
    golden("run_summaries.txt", "\n\n".join(map(lines, [whole, samples, absent, *others])) + "\n")


def test_predictions_are_beside_what_was_measured():
    entries = [run(arm, seed) for arm in ("fp32", "amp_bf16") for seed in (0, 1, 2)]
    for (_, record), step_ms, error_pct in zip(entries[:3], (9.0, 11.0, 10.0), (-10.0, 20.0, 10.0), strict=True):
        bytes_too = {"peak_bytes": 2**20, "error_pct": 1.0}
        record.prediction = StepPrediction(step_ms=step_ms, step_error_pct=error_pct, **bytes_too)
    text = markdown(document_of(entries))
    assert "peak memory of fp32 1.00 MiB (+1.00%); step time of fp32 10.0 ms (+10%)" in text


def test_small_or_wanted_tensors_left_behind_are_no_leak():
    entry = run("fp32")
    for kept in ({"activations": 8, "temporary": 4}, {"activations": 8, "optimizer_state": 2**20}):
        entry[1].memory.kept = kept
        assert "warning" not in lines(entry)


def test_numerics_have_a_line_on_each_low_precision_format(tmp_path):
    numerics().write(tmp_path)
    entry = (tmp_path, run("fp32")[1])
    first, second, *float8 = (line for line in lines(entry).splitlines() if line.startswith("headroom"))
    assert "float16 has the range with scales from " in first
    assert "bfloat16 has the range of float32" in second
    assert all("float8_e" in line for line in float8)
    (tmp_path / "numerics.json").write_text("[]")
    assert "is not numerics" in lines(entry)
    assert "completed" in lines(entry)
