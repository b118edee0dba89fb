"""What is said of the reasons of figures and of the runs behind them."""

from dataclasses import replace

import pytest

from ampsweep.analysis.arm_notes import ArmNote
from ampsweep.analysis.causes import Cause
from ampsweep.analysis.comparison import ComparisonNote, FileProblem
from ampsweep.analysis.pairing import Difference, Unpaired
from ampsweep.analysis.reasons import Reason
from ampsweep.analysis.runs import TrainedOn
from ampsweep.analysis.step_limits import IdleDevice, SmallStep, WaitForData
from ampsweep.analysis.workload_size import SmallPeak
from ampsweep.report.sentences.explaining import arm_note, caution, comparison_note, reason, unpaired
from ampsweep.report.sentences.file_problems import file_problems, leak

MIB = 2**20
HOT = Cause(text="the GPU was hot", num_runs=1, seeds=(2,))
HERE, BESIDE = TrainedOn(("cuda:0",), ("node1",)), TrainedOn(("cuda:1",), ("node1",))
ELSEWHERE = TrainedOn(("cuda:0", "cuda:1"), ("node2",))
APART = ArmNote(kind="other device", seeds=(1, 2), num_apart=2, num_pairs=3, baseline="fp32")
LAUNCHING = SmallStep(num_operators=95, step_ms=0.76, us_per_operator=8.0, min_us_per_operator=20.0)
SMALL = SmallStep(num_operators=430, step_ms=6.1, us_per_operator=14.19, min_us_per_operator=50.0)
TOO_SMALL = (
    "the workload is too small to judge speed by (430 operators in 6.10 ms, 14 us each: under 50 us, launching them "
    "counts)"
)


def test_cautions_name_what_is_too_small():
    assert caution(SMALL) == TOO_SMALL
    assert caution(SmallPeak(peak_bytes=63.0 * MIB)) == (
        "a peak of 63.0 MiB is too small for the memory figures to carry over (under 64.0 MiB)"
    )


def test_measured_launching_is_told_with_its_time():
    measured = SmallStep(step_ms=0.76, launch_ms=0.74, num_operators=95)
    told = "takes the host 0.740 ms of a step of 0.760 ms"
    assert caution(measured) == f"the workload is too small to judge speed by (launching its 95 operators {told})"
    assert caution(replace(measured, num_operators=None)).endswith(f"(launching its operators {told})")


def test_cautions_name_what_limits_the_baseline():
    told = "the baseline's own step is limited by"
    assert (
        caution(WaitForData(wait_ms=35.0, step_ms=100.0))
        == f"{told} waiting for data, 35.0 ms a step on average, 35% of it"
    )
    assert caution(IdleDevice(idle_pct=40.0)) == f"{told} the host, as no kernel ran in 40% of the time"


@pytest.mark.parametrize(
    ("kind", "facts", "text"),
    [
        ("too_small", {"evidence": {}, "small_step": SMALL}, TOO_SMALL),
        (
            "little_arithmetic",
            {"evidence": {"perf/mfu_pct": 7.0}},
            "fp32 reaches 7.00% of the device's peak: little of a step is arithmetic",
        ),
        (
            "odd_sizes",
            {"evidence": {"model.vocab_size": 50257, "data.batch_size": 3}},
            "no multiple of 8, so that tensor cores do not multiply at full rate: model.vocab_size = 50257, "
            "data.batch_size = 3",
        ),
        (
            "idle_device",
            {"evidence": {"device/utilization_pct": 35.0}},
            "no kernel ran on the device in 65% of the time: it waited for the host",
        ),
        (
            "waiting_for_data",
            {"evidence": {"perf/data_wait_ms": 30.0, "perf/step_ms": 100.0}},
            "the host waits for data for 30.0 ms a step on average; the median step takes 100 ms",
        ),
        (
            "waiting_for_data",
            {"evidence": {"perf/data_wait_ms": 30.0, "perf/step_ms": 100.0}, "on_gpu": True},
            "the host waits for data for 30.0 ms a step on average, some of it perhaps while the device was busy; the "
            "median step takes 100 ms",
        ),
        (
            "float32_arithmetic",
            {"evidence": {"bfloat16": 700, "float32": 200, "float64": 100}},
            "30% of the matmul and convolution operations stayed in float32",
        ),
        (
            "skipped_steps",
            {"evidence": {"skipped_steps": 20, "steps": 200}},
            "the scaler skipped 20 of 200 steps, in which nothing was learned",
        ),
        (
            "contaminated",
            {"evidence": {"num_runs": 1}, "num_runs": 2, "causes": (HOT,)},
            "1 of 2 runs contaminated: the GPU was hot",
        ),
        (
            "contaminated",
            {"evidence": {"num_runs": 3}, "num_runs": 4, "causes": (replace(HOT, text="others ran", num_runs=2), HOT)},
            "3 of 4 runs contaminated: others ran (2); the GPU was hot (1)",
        ),
        (
            "launching",
            {"evidence": {}, "small_step": LAUNCHING},
            "its speed is the host's more than its arithmetic's: 95 operators in 0.760 ms, 8.0 us each: under 20 us, "
            "launching them counts",
        ),
        (
            "cast_cache",
            {"evidence": {"autocast_weights_bytes": 30, "activations_saved_bytes": 15}},
            "half-precision copies of the weights take as much as the activations save, or more",
        ),
        (
            "few_activations",
            {"evidence": {"activations_bytes": 10, "peak_bytes": 100}},
            "at the peak of fp32, activations, all that autocast shrinks, are 10% of the bytes",
        ),
    ],
)
def test_every_reason(kind, facts, text):
    assert reason(Reason(kind=kind, arm="amp_bf16", **facts), "fp32") == text


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (ArmNote(kind="not completed", seeds=(2,), status="diverged", cause="nan"), "diverged: nan (seed 2)"),
        (ArmNote(kind="not completed", seeds=(0, 1), status="oom"), "oom (seeds 0, 1)"),
        (
            ArmNote(kind="no channels last", seeds=(1,)),
            "trainer.channels_last=true, and no convolution had its input and weight in that format (seed 1)",
        ),
        (
            ArmNote(kind="nothing recomputed", seeds=(0, 1)),
            "trainer.activation_checkpointing=true, and torch.utils.checkpoint recomputed nothing in backward "
            "(seeds 0, 1)",
        ),
        (
            replace(APART, num_runs_on=((HERE, 1), (BESIDE, 2)), num_baseline_runs_on=((HERE, 3),)),
            "another device than fp32 in 2 of 3 pairs: on cuda:0 (1), cuda:1 (2); fp32 on cuda:0 (3) (seeds 1, 2)",
        ),
        (
            replace(APART, num_runs_on=((ELSEWHERE, 3),), num_baseline_runs_on=((HERE, 3),)),
            "another device than fp32 in 2 of 3 pairs: on cuda:0 and cuda:1 of node2 (3); fp32 on cuda:0 of node1 (3) "
            "(seeds 1, 2)",
        ),
        (
            ArmNote(kind="cut short", seeds=(0, 1, 2), cause="trainer.max_seconds=20 passed"),
            "cut short, hence no loss to compare: trainer.max_seconds=20 passed (seeds 0, 1, 2)",
        ),
        (
            ArmNote(kind="disproved", seeds=(0,), cause="a matmul in float32 lost bits"),
            "disproved, hence compared with nothing: a matmul in float32 lost bits (seed 0)",
        ),
        (
            ArmNote(kind="not timed", seeds=(0, 1), cause="the training ended before its warm-up was over"),
            "no speed: the training ended before its warm-up was over (seeds 0, 1)",
        ),
        (
            ArmNote(kind="contaminated", seeds=(2,), cause="the GPU was hot"),
            "contaminated, hence no speed to compare: the GPU was hot (seed 2)",
        ),
        (
            ArmNote(kind="not paired", seeds=(0,), unpaired=Unpaired(kind="no baseline run", baseline="fp32")),
            "not paired: there is no fp32 run (seed 0)",
        ),
        (
            ArmNote(kind="unusable figure", seeds=(0,), metric="val/loss", cause="nan"),
            "val/loss is not a usable figure (nan) and left out (seed 0)",
        ),
        (ArmNote(kind="repeats", seeds=(0,), num_runs=2), "2 runs of seed 0 are repeats and averaged"),
        (
            ArmNote(kind="graph breaks", seeds=(0, 1), num_breaks=2, cause="nets.py, line 8: a print"),
            "torch.compile broke the graph in 2 places, first at nets.py, line 8: a print (seeds 0, 1)",
        ),
        (
            ArmNote(kind="recompiled", seeds=(0,), cause="a size"),
            "torch.compile compiled again after warm-up (a size); those steps are in no figure of time (seed 0)",
        ),
        (
            ArmNote(kind="not compiled", seeds=(0,)),
            "torch.compile found nothing to compile: every step ran eagerly (seed 0)",
        ),
        (
            ArmNote(kind="several pair keys", seeds=(0,)),
            "under several pair keys, each a pair of its own: other code, data, device or environment (seed 0)",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, ArmNote) else "",
)
def test_every_note_on_an_arm(note, text):
    assert arm_note(note) == text


DIFFERENCES = tuple(Difference(key, there="1", here="2") for key in ("lr", "steps", "optimizer.weight_decay"))


@pytest.mark.parametrize(
    ("kind", "facts", "text"),
    [
        ("not measured", {"outcome": "oom"}, "oom"),
        ("not measured", {"outcome": "failed", "error": "KeyError: x"}, "failed: KeyError: x"),
        ("no other arm", {}, "no other arm has a completed run with its pair key"),
        ("no baseline run", {}, "there is no fp32 run"),
        ("no baseline run of this seed", {"seed": 3}, "there is no fp32 run with seed 3"),
        ("baseline run without figures", {"outcome": "oom"}, "the fp32 run with its pair key is oom"),
        (
            "nearest baseline run differs",
            {"differences": DIFFERENCES[:1], "num_differences": 1},
            "the nearest fp32 run differs in lr (1 there, 2 here)",
        ),
        (
            "nearest baseline run differs",
            {"differences": DIFFERENCES, "num_differences": 5},
            "the nearest fp32 run differs in lr (1 there, 2 here), steps (1 there, 2 here), "
            "optimizer.weight_decay (1 there, 2 here) and 2 more",
        ),
        (
            "unknown difference",
            {},
            "its pair key is that of no fp32 run, for a reason the records do not name",
        ),
    ],
)
def test_why_a_run_is_in_no_pair(kind, facts, text):
    assert unpaired(Unpaired(kind=kind, baseline="fp32", **facts)) == text


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (ComparisonNote(kind="given twice", num_runs=1), "1 run given more than once, counted once"),
        (
            ComparisonNote(kind="predicted", num_runs=2),
            "2 predicted runs left out: only measured runs are compared",
        ),
        (
            ComparisonNote(kind="several devices", num_runs_of=(("a CPU", 1), ("a GPU", 3))),
            "runs of 2 devices are compared only with those of the same: a CPU (1 run), a GPU (3 runs)",
        ),
        (
            ComparisonNote(kind="other margin", margin_pct=5.0, recorded_margin_pct=1.0),
            "the margin of 5% was chosen after the runs, which recorded one of 1%",
        ),
        (
            ComparisonNote(kind="contamination unknown", num_runs=6, cause="nothing tells"),
            "whether anything else slowed 6 runs down is unknown: nothing tells",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, ComparisonNote) else "",
)
def test_every_note_on_a_comparison(note, text):
    assert comparison_note(note) == text


@pytest.mark.parametrize(
    ("kind", "consequence"),
    [
        ("not readable", "left out"),
        ("no history", "no curves, no time to a loss"),
        ("damaged history", "its curves are of what is left, no time to a loss"),
        ("not finite", "gaps in its curves"),
    ],
)
def test_what_follows_from_a_problem_of_a_file(kind, consequence):
    assert file_problems([FileProblem(path="a/x", kind=kind, reason="is odd")]) == [f"a/x is odd; {consequence}"]


def test_files_with_the_same_problem_are_named_together():
    found = [FileProblem(path=f"{name}/run.json", kind="not readable", reason="is empty") for name in "abcde"]
    assert file_problems(found) == ["a/run.json, b/run.json, c/run.json and 2 more: each is empty; left out"]


def test_memory_that_a_step_leaves_behind():
    assert leak(3 * MIB) == "a step left 3.00 MiB behind"
