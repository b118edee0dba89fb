from shown_diagnoses import numerics
from shown_runs import rows
from synthetic_records import LOST_BITS, contaminated, disproved, failed, run

from ampsweep.record.parts import MemoryUse, StepPrediction
from ampsweep.report.run_summary import run_document


def lines(entry):
    document = run_document(*entry)
    return {"run": document.title} | {row["fact"]: row["value"] for row in rows(document, "run")}


def test_a_completed_run_tells_its_figures_and_where_it_is():
    entry = run("amp_fp16", 1, step_ms=12.34, peak_mib=300.0, val_loss=2.5, skipped=3, accuracy=0.97)
    entry[1].summary |= {"perf/tokens_per_sec": 41500.0, "perf/data_wait_ms": 11.6, "train/clipped_pct": 12.5}
    entry[1].memory = MemoryUse(step=7)
    entry[1].wandb.url = "https://wandb.ai/team/ampsweep/runs/a1"
    entry[1].prediction = StepPrediction(peak_bytes=303 * 2**20, error_pct=1.0)
    text = lines(entry)
    assert text["run"] == "amp_fp16, gpt_tiny, seed 1"
    assert text["status"] == "completed"
    assert text["val loss"] == "2.5000, accuracy 0.9700"
    assert text["step time"] == "12.3 ms (41500 tokens/s)"
    assert text["limited by"] == "waiting for data, 11.6 ms a step on average, 94% of it"
    assert text["peak memory"] == "300 MiB (step 7)"
    assert text["predicted"] == "303 MiB (+1.00%)"
    assert text["skipped"] == "3 steps"
    assert text["clipped"] == "in 12 % of the logged steps"
    assert text["directory"] == "runs/amp_fp16-gpt_tiny-8-s1"
    assert text["W&B"] == "https://wandb.ai/team/ampsweep/runs/a1"


def test_samples_are_the_throughput_where_there_are_no_tokens():
    entry = run("fp32")
    entry[1].summary["perf/samples_per_sec"] = 512.0
    assert lines(entry)["step time"].endswith("(512 samples/s)")


def test_a_run_without_a_speed_says_why():
    entry = run("fp32", 0, step_ms=12.0)
    del entry[1].summary["perf/step_ms"]
    entry[1].absent["perf/step_ms"] = "the training ended before its warm-up (10 steps and 2 s) was over"
    assert lines(entry)["step time"] == "none: the training ended before its warm-up (10 steps and 2 s) was over"


def test_the_penalty_of_autocast_is_told_or_why_there_is_none():
    entry = run("amp_bf16")
    entry[1].summary["val/autocast_penalty"] = 0.000123
    assert lines(entry)["autocast"] == "+0.00012 val loss, against full precision"
    del entry[1].summary["val/autocast_penalty"]
    entry[1].absent["val/autocast_penalty"] = "the second evaluation failed: RuntimeError: no memory"
    assert lines(entry)["autocast"] == "no penalty: the second evaluation failed: RuntimeError: no memory"


def test_a_failed_run_tells_why_and_nothing_unmeasured():
    text = lines(failed("amp_fp16", 0, "diverged", "the loss was nan in step [12]"))
    assert text["status"] == "diverged: the loss was nan in step [12]"
    assert text["cause"].startswith("`ampsweep doctor ")
    assert text.keys() == {"run", "status", "cause", "directory"}


def test_a_run_that_does_not_count_says_why():
    text = lines(disproved("fp32"))
    assert text["status"] == f"disproved: {LOST_BITS}"
    text = lines(contaminated("fp32", 0))
    assert text["status"] == "completed"
    assert text["warning"] == "contaminated, its speed does not count: other processes kept 1.0 of 2 cores busy"


def test_a_step_that_leaves_tensors_behind_is_told():
    entry = run("fp32")
    for kept in ({"activations": 8, "temporary": 4}, {"activations": 8, "optimizer_state": 2**20}):
        entry[1].memory.kept = kept
        assert "warning" not in lines(entry)
    entry[1].memory.kept = {"activations": 3 * 2**20, "temporary": 4}
    assert lines(entry)["warning"].startswith("a step left 3.00 MiB behind")


def test_a_run_cut_short_says_so():
    assert lines(run("fp32", cut_short="trainer.max_seconds=20 passed"))["status"].startswith("cut short: trainer.max")


def test_numerics_tell_of_other_formats_in_two_lines(tmp_path):
    numerics().write(tmp_path)
    found = rows(run_document(tmp_path, run("fp32")[1]), "run")
    first, second = (row["value"] for row in found if row["fact"] == "headroom")
    assert first.startswith("float16 works with scales from ")
    assert second.startswith("bfloat16: works, float8_e4m3fn: works")


def test_damaged_numerics_do_not_hide_the_summary(tmp_path):
    (tmp_path / "numerics.json").write_text("[]")
    _, record = run("fp32")
    text = lines((tmp_path, record))
    assert text["status"] == "completed"
    assert "is not numerics" in text["headroom"]
