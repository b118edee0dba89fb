"""What is said of the reasons of figures and of the runs behind them."""

from dataclasses import replace

import pytest

from ampsweep.analysis.comparison import (
    ContaminationUnknown,
    FileProblem,
    GivenTwice,
    OtherMargin,
    Predicted,
    SeveralDevices,
    SeveralMachines,
)
from ampsweep.analysis.pairing import (
    BaselineWithoutFigures,
    Difference,
    NearestRunDiffers,
    NoBaselineRun,
    NoOtherArm,
)
from ampsweep.analysis.reasons import (
    CastCache,
    FewActivations,
    Float32Arithmetic,
    LittleArithmetic,
    OddSizes,
    SkippedSteps,
)
from ampsweep.analysis.run_findings import (
    Contaminated,
    CutShort,
    Disproved,
    GraphBreaks,
    Leaks,
    NotCompiled,
    NotCompleted,
    NothingRecomputed,
    NotPaired,
    NotTimed,
    Recompiled,
    Repeats,
    merged,
)
from ampsweep.analysis.step_limits import IdleDevice, SmallPeak, SmallStep, WaitForData

MIB = 2**20
SMALL = SmallStep(num_operators=430, step_ms=6.1, us_per_operator=14.19, min_us_per_operator=50.0)
TOO_SMALL = (
    "the workload is too small to judge speed by (430 operators in 6.10 ms, 14 us each: under 50 us, launching them "
    "counts)"
)


def test_cautions_name_what_is_too_small():
    assert SMALL.of_baseline == TOO_SMALL
    assert SmallPeak(peak_bytes=63.0 * MIB).sentence == (
        "a peak of 63.0 MiB is too small for the memory figures to carry over (under 64.0 MiB)"
    )


def test_measured_launching_is_told_with_its_time():
    measured = SmallStep(step_ms=0.76, launch_ms=0.74, num_operators=95)
    told = "takes the host 0.740 ms of a step of 0.760 ms"
    assert measured.of_baseline == f"the workload is too small to judge speed by (launching its 95 operators {told})"
    assert replace(measured, num_operators=None).of_baseline.endswith(f"(launching its operators {told})")


def test_cautions_name_what_limits_the_baseline():
    told = "the baseline's own step is limited by"
    assert (
        WaitForData(wait_ms=35.0, step_ms=100.0).of_baseline
        == f"{told} waiting for data, 35.0 ms a step on average, 35% of it"
    )
    assert IdleDevice(idle_pct=40.0).of_baseline == f"{told} the host, as no kernel ran in 40% of the time"


OF_ARM = {"arm": "amp_bf16"}


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            LittleArithmetic(arm=None, baseline="fp32", mfu_pct=7.0),
            "fp32 reaches 7.00% of the device's peak: little of a step is arithmetic",
        ),
        (
            OddSizes(arm=None, sizes={"model.vocab_size": 50257, "data.batch_size": 3}),
            "no multiple of 8, so that tensor cores do not multiply at full rate: model.vocab_size = 50257, "
            "data.batch_size = 3",
        ),
        (
            Float32Arithmetic(**OF_ARM, share_pct=30.0),
            "30% of the matmul and convolution operations stayed in float32",
        ),
        (
            SkippedSteps(**OF_ARM, skipped_steps=20, steps=200),
            "the scaler skipped 20 of 200 steps, in which nothing was learned",
        ),
        (
            CastCache(**OF_ARM, autocast_weights_bytes=30, activations_saved_bytes=15),
            "half-precision copies of the weights take as much as the activations save, or more",
        ),
        (
            FewActivations(**OF_ARM, baseline="fp32", activations_bytes=10, peak_bytes=100),
            "at the peak of fp32, activations, all that autocast shrinks, are 10% of the bytes",
        ),
    ],
)
def test_every_reason(reason, text):
    assert reason.sentence == text


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (NotCompleted(seeds=(2,), status="diverged", cause="nan"), "diverged: nan (seed 2)"),
        (NotCompleted(seeds=(0, 1), status="oom"), "oom (seeds 0, 1)"),
        (
            NothingRecomputed(seeds=(0, 1)),
            "trainer.activation_checkpointing=true, and torch.utils.checkpoint recomputed nothing in backward "
            "(seeds 0, 1)",
        ),
        (
            CutShort(seeds=(0, 1, 2), cause="trainer.max_seconds=20 passed"),
            "cut short, hence no loss to compare: trainer.max_seconds=20 passed (seeds 0, 1, 2)",
        ),
        (
            Disproved(seeds=(0,), cause="a matmul in float32 lost bits"),
            "disproved, hence compared with nothing: a matmul in float32 lost bits (seed 0)",
        ),
        (
            NotTimed(seeds=(0, 1), cause="the training ended before its warm-up was over"),
            "no speed: the training ended before its warm-up was over (seeds 0, 1)",
        ),
        (
            Contaminated(seeds=(2,), cause="the GPU was hot"),
            "contaminated, hence no speed to compare: the GPU was hot (seed 2)",
        ),
        (
            NotPaired(seeds=(0,), reason=NoBaselineRun(baseline="fp32")),
            "not paired: there is no fp32 run (seed 0)",
        ),
        (Repeats(seed=0, num_runs=2), "2 runs of seed 0 are repeats and averaged"),
        (
            GraphBreaks(seeds=(0, 1), num_breaks=2, cause="nets.py, line 8: a print"),
            "torch.compile broke the graph in 2 places, first at nets.py, line 8: a print (seeds 0, 1)",
        ),
        (
            Recompiled(seeds=(0,), cause="a size"),
            "torch.compile compiled again after warm-up (a size); those steps are in no figure of time (seed 0)",
        ),
        (
            NotCompiled(seeds=(0,)),
            "torch.compile found nothing to compile: every step ran eagerly (seed 0)",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else value.kind(),
)
def test_every_note_on_an_arm(note, text):
    assert note.sentence == text


DIFFERENCES = tuple(Difference(key, there="1", here="2") for key in ("lr", "steps", "optimizer.weight_decay"))


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (NoOtherArm(baseline="fp32"), "no other arm has a completed run with its pair key"),
        (NoBaselineRun(baseline="fp32"), "there is no fp32 run"),
        (NoBaselineRun(baseline="fp32", seed=3), "there is no fp32 run with seed 3"),
        (BaselineWithoutFigures(baseline="fp32", outcome="oom"), "the fp32 run with its pair key is oom"),
        (
            NearestRunDiffers(baseline="fp32", differences=DIFFERENCES[:1], num_differences=1),
            "the nearest fp32 run differs in lr (1 there, 2 here)",
        ),
        (
            NearestRunDiffers(baseline="fp32", differences=DIFFERENCES, num_differences=5),
            "the nearest fp32 run differs in lr (1 there, 2 here), steps (1 there, 2 here), "
            "optimizer.weight_decay (1 there, 2 here) and 2 more",
        ),
        (
            NearestRunDiffers(baseline="fp32", differences=(), num_differences=0),
            "its pair key is that of no fp32 run, for a reason the records do not name",
        ),
    ],
)
def test_why_a_run_is_in_no_pair(why, text):
    assert why.sentence == text


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (GivenTwice(num_runs=1), "1 run given more than once, counted once"),
        (
            Predicted(num_runs=2),
            "2 predicted runs left out: only measured runs are compared",
        ),
        (
            SeveralDevices(num_runs_of={"a CPU": 1, "a GPU": 3}),
            "runs of 2 devices are compared only with those of the same: a CPU (1 run), a GPU (3 runs)",
        ),
        (
            SeveralMachines(num_runs_of={"node1 cuda:0": 3, "node2 cuda:0": 1}),
            "the runs trained on 2 devices, whose speed may differ: node1 cuda:0 (3 runs), node2 cuda:0 (1 run)",
        ),
        (
            OtherMargin(margin_pct=5.0, recorded_margin_pct=1.0),
            "the margin of 5% was chosen after the runs, which recorded one of 1%",
        ),
        (
            ContaminationUnknown(num_runs=6, cause="nothing tells"),
            "whether anything else slowed 6 runs down is unknown: nothing tells",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else value.kind(),
)
def test_every_note_on_a_comparison(note, text):
    assert note.sentence == text


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
    found = FileProblem(path="a/x", name=kind, reason="is odd")
    assert (found.sentence, found.consequence) == ("a/x is odd", consequence)


def test_causes_that_differ_in_figures_are_told_as_one():
    found = [Contaminated(seeds=(3,), cause="the GPU was hot")]
    found += [Contaminated(seeds=(s,), cause=f"others kept {c} of 2 cores busy") for s, c in enumerate((0.6, 1.0, 1.0))]
    assert merged(found) == (
        Contaminated(seeds=(0, 1, 2), cause="others kept 0.6 to 1.0 of 2 cores busy"),
        Contaminated(seeds=(3,), cause="the GPU was hot"),
    )


def test_memory_that_a_step_leaves_behind():
    assert Leaks(seeds=(0,), cause="3.00 MiB").why == "a step left 3.00 MiB behind"
