"""The summary at the end of a single training."""

from shown_diagnoses import numerics
from shown_runs import rows
from synthetic_records import contaminated, disproved, failed, run

from ampsweep.record.sections import MemoryUse, StepPrediction
from ampsweep.report.run_summary import run_document


def lines(entry):
    document = run_document(*entry)
    return "\n".join([f"{document.title}", *(f"{row['fact']:12} {row['value']}" for row in rows(document, "run"))])


def test_summaries_of_every_kind_of_run(golden):
    whole = run("amp_fp16", 1, step_ms=12.34, peak_mib=300.0, val_loss=2.5, skipped=3, accuracy=0.97)
    whole[1].summary |= {"perf/tokens_per_sec": 41500.0, "perf/data_wait_ms": 11.6, "train/clipped_pct": 12.5}
    whole[1].memory = MemoryUse(step=7)
    whole[1].wandb.url = "https://wandb.ai/team/ampsweep/runs/a1"
    whole[1].prediction = StepPrediction(peak_bytes=303 * 2**20, error_pct=1.0)
    samples = run("fp32")
    samples[1].summary |= {"perf/samples_per_sec": 512.0, "val/autocast_penalty": 0.000123}
    samples[1].memory.kept = {"activations": 3 * 2**20, "temporary": 4}
    absent = run("fp32")
    del absent[1].summary["perf/step_ms"]
    absent[1].absent["perf/step_ms"] = "the training ended before its warm-up (10 steps and 2 s) was over"
    absent[1].absent["val/autocast_penalty"] = "the second evaluation failed: RuntimeError: no memory"
    others = [
        failed("amp_fp16", 0, "diverged", "the loss was nan in step [12]"),
        disproved("fp32"),
        contaminated("fp32", 0),
        run("fp32", cut_short="trainer.max_seconds=20 passed"),
    ]
    golden("run_summaries.txt", "\n\n".join(map(lines, [whole, samples, absent, *others])) + "\n")


def test_small_or_wanted_tensors_left_behind_are_no_leak():
    entry = run("fp32")
    for kept in ({"activations": 8, "temporary": 4}, {"activations": 8, "optimizer_state": 2**20}):
        entry[1].memory.kept = kept
        assert "warning" not in lines(entry)


def test_numerics_have_two_lines_on_other_formats(tmp_path):
    numerics().write(tmp_path)
    entry = (tmp_path, run("fp32")[1])
    first, second = (line for line in lines(entry).splitlines() if line.startswith("headroom"))
    assert "float16 works with scales from " in first
    assert "bfloat16: works, float8_e4m3fn: works" in second
    (tmp_path / "numerics.json").write_text("[]")
    assert "is not numerics" in lines(entry)
    assert "completed" in lines(entry)
