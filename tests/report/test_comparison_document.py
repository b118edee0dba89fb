"""The document of a comparison; its sentences are in golden files, as Markdown shows them."""

import json
from dataclasses import replace

import pytest
from shown_runs import (
    broken_runs,
    compared_of,
    cpu_runs,
    document_of,
    front_runs,
    gpu_runs,
    on_gpu,
    printed,
    rows,
    section_of,
)
from synthetic_records import contaminated, run, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.record import HISTORY_NAME, find_records
from ampsweep.report.comparison_document import comparison_document, write_comparison
from ampsweep.report.data_formats import as_json
from ampsweep.report.document import Items, Prose
from ampsweep.report.markdown import blocks_as_markdown, markdown


@pytest.mark.parametrize("entries", [cpu_runs, broken_runs])
def test_a_comparison_as_markdown(entries, golden):
    document = document_of(entries())
    golden(f"{entries.__name__}.md", markdown(replace(document, sections=document.sections[:-1])))


def test_the_answer_is_a_headline_with_its_grounds_below(gpu_document):
    overview, *cards = section_of(gpu_document, "verdict").blocks
    assert [card.title for card in cards] == ["batch_size 8", "batch_size 16"]
    for card in cards:
        headline, grounds, *_ = card.blocks
        assert headline == Prose("Train in amp_bf16.", "headline", arm="amp_bf16")
        assert (grounds.kind, grounds.text[:36]) == ("body", "Against fp32, 2.04x [1.94, 2.14] the")
    cells = [cell.text for cell in overview.rows[0].cells]
    assert cells[1:3] == ["amp_bf16", "2.04x faster, 8.0% less memory, equivalent"]


def test_terminal_data_summary_and_method_of_a_workload():
    document = document_of(cpu_runs())
    text = printed(document)
    assert text.index("What would decide it") < text.index("Not decidable yet"), "the answer is last"
    found = json.loads(as_json(document))
    (workload,) = found["workloads"]
    bf16 = next(arm for arm in workload["arms"] if arm["arm"] == "amp_bf16")
    assert bf16["memory_saved_bytes"]["value"] == 30 * 2**20
    assert bf16["speedup"]["value"] == pytest.approx((6.1 * 6.0 * 6.3 / (4.0 * 4.1 * 4.05)) ** (1 / 3))
    assert bf16["autocast_penalty"] is None, "not measured"
    assert found["schema"] == 5
    note = next(note for arm in workload["arms"] for note in arm["notes"] if note["kind"] == "cut_short")
    assert "trainer.max_seconds=20" in note["sentence"]
    summary = document.summary
    assert summary["amp_bf16/memory_saved_bytes"] == 30 * 2**20
    assert (summary["recommended_arm"], summary["num_runs"], summary["num_workloads"]) == ("undecided", 13, 1)
    assert summary["verdict"].startswith("Not decidable yet:")
    assert not any(key.startswith("tf32/speedup") for key in summary)
    assert "amp_bf16/memory_saved_bytes" not in document_of(gpu_runs()).summary, "of several workloads"
    (method,) = (block for block in section_of(document, "method").blocks if isinstance(block, Items))
    explained = {item.label.removesuffix(":") for item in method.items}
    assert {"step time", "speedup", "memory saved", "limited by", "parity", "recommendation", "front"} <= explained
    assert not {"val accuracy", "largest batch"} & explained


def test_optional_columns_and_unchecked_speeds():
    for accuracy in (0.97, None):
        row, *_ = rows(document_of([run("fp32", accuracy=accuracy), run("amp_bf16", accuracy=accuracy)]), "arms")
        assert row.get("val accuracy") == (None if accuracy is None else "0.9700")
    unknown = {"contamination": {"verdict": "unknown", "reasons": ["nothing tells"]}}
    entries = [on_gpu("fp32", seed, step_ms=100.0) for seed in range(3)]
    entries += [on_gpu("amp_bf16", seed, step_ms=3.2, **unknown) for seed in range(3)]
    row = next(row for row in rows(document_of(entries), "arms") if row["arm"] == "amp_bf16")
    assert row["limited by"] == "launching (8.0 us/op)"
    assert "3 of 6 unchecked" in row["speedup"]


def test_similar_problems_share_a_row():
    entries = [
        contaminated(arm, seed, f"others kept {busy} of 2 cores busy")
        for arm in ("amp_bf16", "amp_fp16")
        for seed, busy in enumerate((0.6, 1.0, 1.0, 1.4))
    ]
    (row,) = rows(document_of([*sweep("fp32", [100.0] * 4), *entries]), "problems")
    assert [row["arm"], row["seeds"]] == ["amp_bf16, amp_fp16", "0, 1, 2, 3"]
    assert row["why"] == "others kept 0.6 to 1.4 of 2 cores busy"


def test_runs_have_links_and_unreadable_histories_are_named(write, tmp_path):
    entries = gpu_runs()
    entries[0][1].wandb.url = "https://wandb.ai/team/ampsweep/runs/a1"
    entries[1][1].wandb.directory = "/data/wandb/offline-run-1"
    entries[0][1].environment["packages"]["torch"] = "2.12.0"
    records = write(entries)
    (tmp_path / "fp32-gpt_tiny-8-s0" / HISTORY_NAME).write_text('{"step": 5, "train/loss": 1.0}\nnot json\n')
    document = document_of(records, tmp_path)
    found = {row["directory"]: row for row in rows(document, "runs")}
    assert len(found) == len(entries)
    row = found["fp32-gpt_tiny-8-s0"]
    assert (row["arm"], row["seed"], row["step time"], row["peak memory"]) == ("fp32", "0", "100 ms", "3.13 GiB")
    assert row["differs in"] == "data.batch_size=8"
    text = blocks_as_markdown(document.sections)
    assert "<https://wandb.ai/team/ampsweep/runs/a1>" in text
    assert "/data/wandb/offline-run-1 |" in text
    problems = {row["problem"]: row for row in rows(document, "problems")}
    damaged, oom = problems["no history"], problems["oom"]
    assert (damaged["arm"], damaged["seeds"]) == ("fp32", "0")
    assert damaged["why"] == "fp32-gpt_tiny-8-s0/history.jsonl is damaged: line 2 is not JSON"
    assert oom["workload"] == "batch_size 16"
    assert {"fact": "flags.matmul_fp32_precision", "value": "ieee"} in rows(document, "environment")
    assert {"fact": "packages.torch", "value": "2.12.0", "runs": "1 run: fp32"} in rows(
        document, "environment_differing"
    )


def test_seeds_of_two_states_of_the_source_pair_and_are_noted():
    states = {0: "0.1.0+aaaaaaaa", 1: "0.1.0+bbbbbbbb"}
    entries = [
        run(arm, seed, step_ms=step_ms, environment={"code_version": states[seed]})
        for arm, step_ms in (("fp32", 100.0), ("amp_bf16", 50.0))
        for seed in states
    ]
    document = document_of(entries)
    assert {row["arm"]: row["n"] for row in rows(document, "arms")}["amp_bf16"] == "2", "both seeds pair"
    assert "0.1.0+aaaaaaaa (2 runs), 0.1.0+bbbbbbbb (2 runs)" in printed(document)


def test_the_front_and_pitfalls(golden):
    document = document_of(front_runs())
    golden("front.md", blocks_as_markdown([section_of(document, "verdict")]))
    fp32, amp, pure = (front_runs()[place : place + 3] for place in (0, 3, 6))
    adam = {"optimizer": fp32[0][1].config["optimizer"]}
    tf32 = sweep("tf32", [120.0, 121.0, 119.0], val_loss=[2.00, 2.02, 1.98], config=adam)
    for entries, memory_gib, sentence in (
        (fp32 + pure, None, "on the front: fp32, pure_bf16; none is beaten"),
        (fp32 + amp + pure + tf32, None, "fp32, tf32 by amp_bf16 (slower and more memory)"),
        (fp32 + amp, 0.1, "no arm that could be recommended fits into the 102 MiB given; allow more memory"),
    ):
        (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, memory_gib=memory_gib).workloads
        assert sentence in f"{workload.verdict.front.sentence} {workload.verdict.sentence}"


def test_a_comparison_is_written_anew_from_the_records_beside_it(tmp_path):
    for arm, step_ms in (("fp32", 10.0), ("amp_bf16", 5.0)):
        path, record = run(arm, step_ms=step_ms)
        (tmp_path / path.name).mkdir()
        record.write(tmp_path / path.name)
    (tmp_path / "comparison.md").write_text("old")
    for _ in range(2):
        write_comparison(comparison_document(compared_of(find_records(tmp_path).records), tmp_path), tmp_path)
    written = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert written == {"comparison.json", "comparison.md", "comparison.html"}
    (workload,) = json.loads((tmp_path / "comparison.json").read_text())["workloads"]
    directories = [entry["directory"] for entry in workload["runs"]]
    assert directories == ["amp_bf16-gpt_tiny-8-s0", "fp32-gpt_tiny-8-s0"]
    assert workload["arms"][1]["speedup"]["value"] == 2.0
    for name in ("comparison.md", "comparison.html"):
        assert "2.00x" in (tmp_path / name).read_text(encoding="utf-8")
    nothing = document_of([])
    text = " ".join(printed(nothing).split())
    assert text == "Precision compared with fp32 (0 runs, 0 arms, 0 workloads) No runs to compare."
    with pytest.raises(FileNotFoundError):
        write_comparison(nothing, tmp_path / "missing")
