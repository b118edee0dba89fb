"""The document of a comparison; its sentences are in golden files, as Markdown shows them."""

import json
from functools import partial

import pytest
from shown_runs import broken_runs, cpu_runs, front_runs, gpu_runs, on_gpu

from shown_runs import document_of, printed, rows, section_of  # isort: skip
from synthetic_records import contaminated, failed, run, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.records import HISTORY_NAME
from ampsweep.report.data_formats import as_json
from ampsweep.report.document import Prose
from ampsweep.report.markdown import blocks_as_markdown, markdown


@pytest.mark.parametrize("entries", [cpu_runs, broken_runs])
def test_a_comparison_as_markdown(entries, golden):
    document = document_of(entries())
    summary = {key: round(value, 6) if type(value) is float else value for key, value in document.summary.items()}
    golden(f"{entries.__name__}.md", f"{markdown(document)}\n```\n{json.dumps(summary, indent=1)}\n```\n")


def test_workloads_with_links_unreadable_histories_and_two_states_of_the_source(write, tmp_path, golden):
    entries = gpu_runs()
    entries[0][1].wandb.url = "https://wandb.ai/team/ampsweep/runs/a1"
    entries[1][1].wandb.directory = "/data/wandb/offline-run-1"
    for number, (_, record) in enumerate(entries):
        record.environment |= {"code_version": f"0.1.0+{'aaaaaaaa' if number % 2 else 'bbbbbbbb'}"}
    entries[7][1].environment["packages"]["torch"] = "2.12.0"  # of amp_fp16
    records = write(entries)
    (tmp_path / "fp32-gpt_tiny-8-s0" / HISTORY_NAME).write_text('{"step": 5, "train/loss": 1.0}\nnot json\n')
    document = document_of(records, tmp_path)
    shown = ("Verdict", "Notes", "What went wrong", "Runs", "Environment")
    golden("gpu_runs.md", blocks_as_markdown([part for part in document.sections if part.title in shown]))
    _, *cards = section_of(document, "verdict").blocks
    text = "Train this in amp_bf16: 8.0% less memory, as good a loss; on a GPU 2.04x as fast."
    assert cards[0].blocks[0] == Prose(text, "headline", arm="amp_bf16")


def test_the_terminal_and_the_data_of_a_workload():
    document = document_of(cpu_runs())
    screen = printed(document, 120, is_terminal=True).splitlines()
    assert len(screen) <= 40, "four arms fit a screen"
    title, answer = document.title, document.summary["verdict"]
    assert answer == "Train this in amp_bf16: 30% less memory, as good a loss; on this CPU 1.51x as fast."
    assert screen[0].startswith(title)
    assert screen.index(answer) < next(place for place, line in enumerate(screen) if line.startswith("fp32"))
    assert sum("tf32" in line for line in screen) == 1, "an arm that cannot run here takes a line"
    found = json.loads(as_json(document))
    (workload,) = found["workloads"]
    bf16, fp16 = (next(arm for arm in workload["arms"] if arm["arm"] == name) for name in ("amp_bf16", "amp_fp16"))
    assert (found["schema"], bf16["memory_saved_bytes"]["value"], bf16["autocast_penalty"]) == (6, 30 * 2**20, None)
    assert bf16["speedup"]["value"] == pytest.approx((6.1 * 6.0 * 6.3 / (4.0 * 4.1 * 4.05)) ** (1 / 3))
    (note,) = (note["sentence"] for note in fp16["notes"] if note["kind"] == "cut_short")
    assert "trainer.max_seconds=20" in note
    assert "amp_bf16/memory_saved_bytes" not in document_of(gpu_runs()).summary, "of several workloads"


def test_speeds_that_nothing_checked_are_marked():
    unknown = {"contamination": {"verdict": "unknown", "reasons": ["nothing tells"]}}
    fast = [on_gpu("amp_bf16", seed, step_ms=3.2, **unknown) for seed in range(3)]
    document = document_of([*(on_gpu("fp32", seed) for seed in range(3)), *fast])
    assert rows(document, "arms_further")[1]["limited by"] == "launching (8.0 us/op)"
    assert "3 of 6 unchecked" in rows(document, "arms")[1]["speedup"]


def test_similar_problems_share_a_row():
    entries = [failed(arm, seed, "oom", f"{seed}.5 GiB") for arm in ("amp_bf16", "amp_fp16") for seed in range(4)]
    row, _ = rows(document_of([*sweep("fp32", [100.0] * 4), *entries]), "problems")
    assert [row["arm"], row["seeds"]] == ["amp_bf16, amp_fp16", "0, 1, 2, 3"]
    assert row["why"] == "0.5 to 3.5 GiB"


def busy(arm, times, clean=0, **more):
    """A sweep whose runs but the first `clean` ran beside other load."""
    why = [f"others kept {1 + seed / 10} of 2 cores busy" for seed in range(len(times))]
    return [
        (run if seed < clean else partial(contaminated, reason=why[seed]))(arm, seed, step_ms=time, **more)
        for seed, time in enumerate(times)
    ]


def test_a_disturbed_speed_is_shown_and_decides_nothing():
    """Of two arms beside load, one has three clean pairs, whose speed counts as ever."""
    fp32, times = busy("fp32", [100.0, 101.0, 99.0, 102.0], clean=3), [50.0, 51.0, 49.0, 50.0]
    document = document_of(
        [*fp32, *busy("amp_bf16", times, clean=2, peak_mib=800.0), *busy("amp_fp16", times, clean=3)]
    )
    baseline, bf16, fp16 = rows(document, "arms")
    assert bf16["speedup"].startswith("2.01x (disturbed; [")
    assert (bf16["step time"], bf16["verdict"]) == ("50.0 ms (disturbed)", "undecided")
    assert fp16["speedup"].startswith("2.00x (faster; [")
    assert (baseline["step time"], fp16["step time"]) == ("100.0 ms", "50.0 ms")
    summary = document.summary
    assert {key for key in summary if "speedup" in key} == {"amp_bf16/disturbed_speedup", "amp_fp16/speedup"}
    assert "amp_bf16/step_ms" not in summary
    every = printed(document_of([*busy("fp32", [100.0] * 3), *busy("amp_bf16", times[:3], peak_mib=800.0)]))
    assert (
        "amp_bf16: 20% less memory, as good a loss; its speed is not judged, since others kept 1.0 to 1.2 of 2" in every
    )
    assert "3 more seeds on an idle machine should decide it." in every
    assert every.count("cores busy") == 2, "in the headline, and once for all runs"


def test_the_front_and_pitfalls(golden):
    document = document_of(front_runs())
    golden("front.md", blocks_as_markdown([section_of(document, "verdict")]))
    fp32, amp, pure = (front_runs()[place : place + 3] for place in (0, 3, 6))
    adam = {"optimizer": fp32[0][1].config["optimizer"]}
    tf32 = sweep("tf32", [120.0, 121.0, 119.0], val_loss=[2.00, 2.02, 1.98], config=adam)
    for entries, memory_gib, sentence in (
        (fp32 + pure, None, "on the front: fp32, pure_bf16; none is beaten"),
        (fp32 + amp + pure + tf32, None, "fp32, tf32 by amp_bf16 (slower and more memory)"),
        (fp32 + amp, 0.1, "No arm that could be recommended fits into the 102 MiB given; allow more memory"),
    ):
        (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, memory_gib=memory_gib).workloads
        assert sentence in f"{workload.verdict.front.sentence} {workload.verdict.sentence}"


def test_no_runs_are_said_in_a_sentence():
    text = " ".join(printed(document_of([])).split())
    assert text == "Precision compared with fp32 (0 runs, 0 arms, 0 workloads) No runs to compare."
