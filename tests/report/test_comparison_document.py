"""What the document of a comparison says; how a format shows it is the renderers' matter."""

import json
import re
from dataclasses import replace

import pytest
from shown_runs import compared_of, document_of, like, on_gpu, printed, rows
from synthetic_records import LOST_BITS, contaminated, failed, run, sweep

from ampsweep.record import HISTORY_NAME, find_records
from ampsweep.report.comparison_document import comparison_document, write_comparison
from ampsweep.report.data_formats import as_json
from ampsweep.report.document import Items, Prose, Section
from ampsweep.report.markdown import markdown


def card(document, place=0):
    (verdict,) = (one for one in document.sections if one.key == "verdict")
    return [one for one in verdict.blocks if isinstance(one, Section)][place]


def lines(section):
    """(label, arm, text) of the lists of a section."""
    items = [item for block in section.blocks if isinstance(block, Items) for item in block.items]
    return [(item.label, item.arm, item.text) for item in items]


@pytest.fixture
def cpu_runs():
    return [
        *sweep("fp32", [6.1, 6.0, 6.3], peak_mib=100.0, val_loss=[2.41, 2.43, 2.40], skipped=0, num_operators=430),
        *(failed("tf32", seed, "unsupported", "tf32 needs a CUDA device; this is a CPU.") for seed in range(3)),
        *sweep("amp_bf16", [4.0, 4.1, 4.05], peak_mib=70.0, val_loss=[2.412, 2.431, 2.404], skipped=0),
        *sweep(
            "amp_fp16",
            [71.0, 70.0, 73.0],
            peak_mib=110.0,
            skipped=[3, 0, 1],
            cut_short="trainer.max_seconds=20 passed after 17 of 40 steps",
        ),
        run("amp_fp16", 3, pair_key="older code", wandb={"url": "https://wandb.ai/team/ampsweep/runs/a1"}),
    ]


def test_the_answer_comes_first_its_grounds_in_full_size_after(gpu_runs, tmp_path):
    document = document_of(gpu_runs)
    for place, batch_size in enumerate((8, 16)):
        one = card(document, place)
        assert one.title == f"batch_size {batch_size}"
        headline, grounds, *_ = one.blocks
        assert headline == Prose("Train in amp_bf16.", "headline", arm="amp_bf16")
        assert re.fullmatch(
            r"Against fp32, 2.04x the speed.*8\.\d% less peak memory.*\(n=3\)\.|Against .*", grounds.text
        )
        assert grounds.kind == "body"
    (overview,) = (one for one in rows(document, "overview") if one["workload"] == "batch_size 8")
    assert overview["train in"] == "amp_bf16"
    assert overview["amp_bf16"].startswith("2.04x faster, 8.0% less memory, equivalent")


def test_the_table_has_each_figure_with_interval_and_word(cpu_runs):
    of_arm = {row["arm"]: row for row in rows(document_of(cpu_runs), "arms")}
    assert of_arm["fp32"]["step time"] == "6.13 ms"
    assert of_arm["fp32"]["limited by"] == "launching (14 us/op)"
    assert of_arm["fp32"]["val loss"] == "2.4133 (sd 0.0153)"
    assert of_arm["amp_bf16"]["speedup"].startswith("1.51x (faster; [1.4")
    assert of_arm["amp_bf16"]["memory saved"] == "30.0 MiB (saves; 30.0%)"
    assert of_arm["amp_bf16"]["loss gap"].startswith("+0.0023 (equivalent; [")
    assert of_arm["amp_bf16"]["n"] == "3"
    assert of_arm["amp_fp16"]["memory saved"] == "-10.0 MiB (adds; -10.0%)"
    assert of_arm["amp_fp16"]["status"] == "1 completed, 3 cut short"
    assert {text for header, text in of_arm["tf32"].items() if header not in ("arm", "verdict", "status", "n")} == {"-"}


def test_the_data_have_the_digits_that_the_texts_round(cpu_runs):
    found = json.loads(as_json(document_of(cpu_runs)))
    (workload,) = found["workloads"]
    bf16 = next(arm for arm in workload["arms"] if arm["arm"] == "amp_bf16")
    assert bf16["memory_saved_bytes"]["value"] == 30 * 2**20
    assert bf16["autocast_penalty"] is None, "what was not measured is null"
    assert found["schema"] == 5
    note = next(one for arm in workload["arms"] for one in arm["notes"] if one["kind"] == "cut_short")
    assert "trainer.max_seconds=20" in note["sentence"]


def test_a_terminal_ends_a_workload_with_its_answer(cpu_runs):
    text = printed(document_of(cpu_runs))
    assert text.index("What would decide it") < text.index("Not decidable yet")


def test_accuracy_has_a_column_only_where_there_is_one():
    for accuracy in (0.97, None):
        row, *_ = rows(document_of([run("fp32", accuracy=accuracy), run("amp_bf16", accuracy=accuracy)]), "arms")
        assert ("val accuracy" in row) == (accuracy is not None)


def test_what_limits_an_arm_stands_beside_its_speed():
    unknown = {"contamination": {"verdict": "unknown", "reasons": ["nothing tells"]}}
    entries = [on_gpu("fp32", seed, step_ms=100.0) for seed in range(3)]
    entries += [on_gpu("amp_bf16", seed, step_ms=3.2, **unknown) for seed in range(3)]
    row = next(row for row in rows(document_of(entries), "arms") if row["arm"] == "amp_bf16")
    assert row["limited by"] == "launching (8.0 us/op)"
    assert "3 of 6 unchecked" in row["speedup"]


def test_every_trouble_is_a_row_with_its_reason_and_what_follows(broken_runs):
    document = document_of(broken_runs)
    found = {(row["problem"], row["arm"]): row for row in rows(document, "problems")}
    for problem, arm, seeds, why, consequence in (
        ("oom", "amp_fp16", "1", "CUDA out of memory. Tried to allocate 2.00 GiB", "no figures"),
        ("diverged", "amp_fp16", "0", "the scale collapsed to 1e-08 at step 12", "no figures"),
        ("failed", "amp_fp16", "2", "RuntimeError: the disk is full", "no figures"),
        ("unsupported", "tf32", "0", "tf32 needs a GPU", "no figures"),
        ("contaminated", "amp_bf16", "0", "other processes kept 1.0 of 2 cores busy", "its speed does not count"),
        ("disproved", "amp_bf16", "1", LOST_BITS, "none of its figures count"),
        ("cut short", "amp_bf16", "2", "trainer.max_seconds=20 passed after 17 of 40 steps", "its loss does not count"),
        ("not paired", "amp_bf16", "7", "there is no fp32 run with seed 7", "compared with nothing"),
    ):
        row = found[problem, arm]
        assert (row["seeds"], row["why"], row["consequence"]) == (seeds, why, consequence)
    assert "other processes kept" not in printed(replace(document, sections=document.sections[:1])), "said once"


def test_problems_alike_but_for_a_figure_or_the_arm_are_one_row():
    cores = (0.6, 1.0, 1.0, 1.4)
    entries = [
        contaminated(arm, seed, f"others kept {busy} of 2 cores busy")
        for arm in ("amp_bf16", "amp_fp16")
        for seed, busy in enumerate(cores)
    ]
    (row,) = rows(document_of([*sweep("fp32", [100.0] * 4), *entries]), "problems")
    assert (row["arm"], row["why"], row["seeds"]) == (
        "amp_bf16, amp_fp16",
        "others kept 0.6 to 1.4 of 2 cores busy",
        "0, 1, 2, 3",
    )


def test_an_unreadable_history_is_a_problem_of_its_run(write, gpu_runs, tmp_path):
    records = write(gpu_runs)
    (tmp_path / "fp32-gpt_tiny-8-s0" / HISTORY_NAME).write_text('{"step": 5, "train/loss": 1.0}\nnot json\n')
    found = rows(document_of(records, tmp_path), "problems")
    (row,) = (one for one in found if one["problem"] == "no history")
    assert (row["arm"], row["seeds"]) == ("fp32", "0")
    assert row["why"] == "fp32-gpt_tiny-8-s0/history.jsonl is damaged: line 2 is not JSON"


def test_runs_are_listed_with_differences_figures_and_links(write, gpu_runs, tmp_path):
    gpu_runs[0][1].wandb.url = "https://wandb.ai/team/ampsweep/runs/a1"
    gpu_runs[1][1].wandb.directory = "/data/wandb/offline-run-1"
    found = rows(document_of(write(gpu_runs), tmp_path), "runs")
    assert len(found) == len(gpu_runs)
    (row,) = (one for one in found if one["directory"] == "fp32-gpt_tiny-8-s0")
    assert (row["arm"], row["seed"], row["step time"]) == ("fp32", "0", "100 ms")
    assert row["differs in"] == "data.batch_size=8"
    text = markdown(document_of(write_again(gpu_runs, tmp_path), tmp_path))
    assert "<https://wandb.ai/team/ampsweep/runs/a1>" in text
    assert "/data/wandb/offline-run-1 |" in text


def write_again(_, directory):
    return find_records(directory).records


def test_the_environment_is_said_once_and_differences_by_run(gpu_runs):
    gpu_runs[0][1].environment["packages"]["torch"] = "2.12.0"
    document = document_of(gpu_runs)
    assert {"fact": "flags.matmul_fp32_precision", "value": "ieee"} in rows(document, "environment")
    different = {"fact": "packages.torch", "value": "2.12.0", "runs": "1 run: fp32"}
    assert different in rows(document, "environment_differing")


def test_seeds_of_two_states_of_the_source_pair_and_are_noted():
    states = {0: "0.1.0+aaaaaaaa", 1: "0.1.0+bbbbbbbb"}
    entries = [
        run(arm, seed, step_ms=step_ms, environment={"code_version": states[seed]})
        for arm, step_ms in (("fp32", 100.0), ("amp_bf16", 50.0))
        for seed in states
    ]
    document = document_of(entries)
    assert {row["arm"]: row["n"] for row in rows(document, "arms")}["amp_bf16"] == "2", "both seeds pair"
    said = "The runs were made by 2 states of ampsweep's source, which keep no runs of one version from pairing"
    assert f"{said}: 0.1.0+aaaaaaaa (2 runs), 0.1.0+bbbbbbbb (2 runs)" in printed(document)


def test_it_says_how_each_figure_that_it_shows_was_taken(cpu_runs):
    (method,) = (one for one in document_of(cpu_runs).sections if one.key == "method")
    told = {label.removesuffix(":") for label, _, _ in lines(method)}
    assert {"step time", "speedup", "memory saved", "parity", "recommendation"} <= told
    assert "val accuracy" not in told
    assert "largest batch" not in told


def test_no_runs_are_said_to_be_none():
    assert printed(document_of([])) == "Precision compared with fp32 (0 runs, 0 arms, 0 workloads) No runs to compare."


def test_the_summary_has_the_figures_of_a_single_workload(cpu_runs):
    summary = document_of(cpu_runs).summary
    assert summary["amp_bf16/memory_saved_bytes"] == 30 * 2**20
    assert summary["recommended_arm"] == "undecided"
    assert summary["num_runs"] == 13
    assert summary["verdict"].startswith("Not decidable yet:")
    assert not any(key.startswith("tf32/speedup") for key in summary)


FILES = {"comparison.json", "comparison.md", "comparison.html"}


def test_a_comparison_is_rebuilt_from_the_records_beside_it(tmp_path):
    for arm, step_ms in (("fp32", 10.0), ("amp_bf16", 5.0)):
        path, record = run(arm, step_ms=step_ms)
        (tmp_path / path.name).mkdir()
        record.write(tmp_path / path.name)
    (tmp_path / "comparison.md").write_text("old")
    for _ in range(2):
        write_comparison(comparison_document(compared_of(find_records(tmp_path).records), tmp_path), tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == FILES
    content = json.loads((tmp_path / "comparison.json").read_text())
    assert [entry["directory"] for entry in content["workloads"][0]["runs"]] == [
        "amp_bf16-gpt_tiny-8-s0",
        "fp32-gpt_tiny-8-s0",
    ]
    assert content["workloads"][0]["arms"][1]["speedup"]["value"] == 2.0
    for name in ("comparison.md", "comparison.html"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "2.00x" in text
    assert "old" not in (tmp_path / "comparison.md").read_text().split()
    with pytest.raises(FileNotFoundError):
        write_comparison(document_of([run("fp32")]), tmp_path / "missing")


def test_a_lost_run_is_of_the_same_workload(gpu_runs):
    assert like(gpu_runs[0])["facts"]["batch_size"] == 8
    (row,) = (one for one in rows(document_of(gpu_runs), "problems") if one["problem"] == "oom")
    assert row["workload"] == "batch_size 16"
