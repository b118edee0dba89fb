"""What is said of an arm's speed, memory and learning."""

from dataclasses import fields, replace
from operator import neg

import pytest
from synthetic_records import sweep

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.judgements import Judgements, Parity
from ampsweep.analysis.run_findings import statuses_text
from ampsweep.analysis.statistics import Estimate
from ampsweep.analysis.step_limits import IdleDevice, SmallStep, WaitForData
from ampsweep.analysis.time_to_loss import TimeToLoss

MIB = 2**20
FASTER = Estimate(value=1.4941, n=3, low=1.4552, high=1.5340)
SAVED = Estimate(value=400.0 * MIB, n=3, exact=True)
NOTHING = Estimate(value=0.0, n=3, exact=True)
ONE_PAIR = Estimate(value=0.0, n=1)
SHARE = Estimate(value=40.0, n=3, exact=True)
LOSS = Parity(
    metric="val/loss",
    verdict="equivalent",
    n=3,
    gap=0.0027,
    low=0.0011,
    high=0.0043,
    margin=0.02,
    margin_pct=1.0,
    further_seeds=0,
    not_worse=True,
    is_share=False,
)
OPEN = replace(LOSS, verdict="inconclusive", low=-0.03, high=0.04, not_worse=False, further_seeds=21)
UNTESTED = replace(OPEN, n=2, low=None, high=None, further_seeds=1)
ACCURACY = replace(LOSS, metric="val/accuracy", is_share=True, margin=0.01)
ENTRIES = [*sweep("fp32", [100.0] * 3), *sweep("amp_bf16", [50.0] * 3)]
FIGURES = replace(
    compare(ENTRIES, baseline="fp32", margin_pct=1.0).workloads[0].arms[1],
    speedup=FASTER,
    memory_saved_bytes=SAVED,
    memory_saved_pct=SHARE,
    limits=(),
    num_unchecked=0,
)


def judged_of(**changes):
    """Judgements on an arm that is faster, saves memory and is equivalent, but for what is given."""
    own = {one.name for one in fields(Judgements)}
    words = {"speed": "faster", "memory": "saves", "parity": "equivalent", "parities": (LOSS,), "contaminated": ()}
    figures = replace(FIGURES, **{name: value for name, value in changes.items() if name not in own})
    return Judgements(figures=figures, **{**words, **{name: changes[name] for name in changes if name in own}})


FOUND = judged_of()
HOT = (("amp_bf16", 1), ("fp32", 2))
LAUNCHING = SmallStep(num_operators=95, step_ms=0.76, us_per_operator=8.0, min_us_per_operator=20.0)
WAITING = WaitForData(wait_ms=30.0, step_ms=100.0)
IDLE = IdleDevice(idle_pct=40.0)
LIMITED = "limited by launching operators, 8.0 us each"
NO_SPEED = {"speed": "not measured", "speedup": None}


@pytest.mark.parametrize(
    ("judged", "text"),
    [
        (FOUND, "1.49x [1.46, 1.53] the speed, n=3"),
        (judged_of(speed="too few pairs", speedup=Estimate(value=1.5, n=2)), "1.50x the speed, n=2"),
        (judged_of(speed="same"), "the same speed, n=3"),
        (judged_of(speed="unresolved"), "no resolved speed difference, 1.49x [1.46, 1.53], n=3"),
        (
            judged_of(contaminated=HOT),
            "1.49x [1.46, 1.53] the speed (n=3, without 1 contaminated amp_bf16 run and 2 contaminated fp32 runs)",
        ),
        (judged_of(limits=(LAUNCHING,)), f"1.49x [1.46, 1.53] the speed, n=3 ({LIMITED})"),
        (
            judged_of(limits=(LAUNCHING, WAITING)),
            f"1.49x [1.46, 1.53] the speed, n=3 ({LIMITED} and waiting for data, 30.0 ms a step on average, 30% of it)",
        ),
        (
            judged_of(limits=(SmallStep(step_ms=0.76, launch_ms=0.74),)),
            "1.49x [1.46, 1.53] the speed, n=3 (limited by launching operators, 0.740 ms of a step of 0.760 ms)",
        ),
        (
            judged_of(limits=(IDLE,)),
            "1.49x [1.46, 1.53] the speed, n=3 (limited by the host, as no kernel ran in 40% of the time)",
        ),
        (
            judged_of(num_timed=6, num_unchecked=6),
            "1.49x [1.46, 1.53] the speed, n=3 (contamination unknown)",
        ),
        (
            judged_of(contaminated=HOT[:1], limits=(LAUNCHING,), num_timed=6, num_unchecked=1),
            "1.49x [1.46, 1.53] the speed (n=3, without 1 contaminated amp_bf16 run; "
            f"{LIMITED}; contamination of 1 of 6 runs unknown)",
        ),
        (judged_of(**NO_SPEED), "speed not measured"),
        (
            judged_of(**NO_SPEED, contaminated=HOT[:1]),
            "speed not compared (1 contaminated amp_bf16 run)",
        ),
    ],
    ids=[
        *(
            "faster",
            "two pairs",
            "same",
            "unresolved",
            "contaminated",
            "launching",
            "launching and data",
            "measured",
            "host",
        ),
        *("unchecked", "much to say", "not measured", "all contaminated"),
    ],
)
def test_the_speed_of_an_arm(judged, text):
    assert judged.speed_text == text


def test_what_limits_an_arm_stands_beside_its_speed_everywhere():
    judged = judged_of(limits=(LAUNCHING,), num_timed=6, num_unchecked=6)
    remarks = f"({LIMITED}; contamination unknown)"
    assert judged.summary.startswith(f"1.49x [1.46, 1.53] the speed {remarks}, saves")


def test_launching_is_said_once_where_all_of_it_is_too_small():
    judged = judged_of(limits=(LAUNCHING, WAITING), workload_is_small=True)
    told = "(limited by waiting for data, 30.0 ms a step on average, 30% of it), "
    assert judged.summary.startswith(f"1.49x [1.46, 1.53] the speed {told}")


@pytest.mark.parametrize(
    ("word", "saved", "share", "text"),
    [
        ("saves", SAVED, SHARE, "saves 400 MiB of peak memory (40.0%)"),
        ("adds", SAVED.mapped(neg), SHARE.mapped(neg), "adds 400 MiB of peak memory (40.0%)"),
        ("same", NOTHING, NOTHING, "the same peak memory"),
        ("too few pairs", ONE_PAIR, ONE_PAIR, "the same peak memory (n=1)"),
        (
            "unresolved",
            SAVED,
            Estimate(value=40.0, n=3, low=-1.0, high=81.0),
            "no resolved memory difference, saves 400 MiB of peak memory (40.0% [-1, 81])",
        ),
        ("not measured", None, None, "memory not measured"),
    ],
)
def test_the_memory_of_an_arm(word, saved, share, text):
    judged = judged_of(memory=word, memory_saved_bytes=saved, memory_saved_pct=share)
    assert judged.summary.startswith(f"1.49x [1.46, 1.53] the speed, {text}, val loss")


@pytest.mark.parametrize(
    ("held", "grounds", "short"),
    [
        (LOSS, "gap +0.0027 [+0.0011, +0.0043] inside ±0.020 (1%), n=3", "+0.0027 (+0.14%), equivalent within 1%"),
        (
            replace(LOSS, verdict="worse"),
            "gap +0.0027 [+0.0011, +0.0043] above ±0.020 (1%), n=3",
            "+0.0027 (+0.14%), worse by more than 1%",
        ),
        (
            replace(LOSS, verdict="better", gap=-0.0027, low=-0.0043, high=-0.0011),
            "gap -0.0027 [-0.0043, -0.0011] below ±0.020 (1%), n=3",
            "-0.0027 (-0.14%), better by more than 1%",
        ),
        (OPEN, "gap +0.003 [-0.030, +0.040] crosses ±0.020 (1%), n=3", "+0.0027 (+0.14%), parity inconclusive"),
        (UNTESTED, "gap +0.0027 in 2 pairs, at least 3 are needed", "+0.0027 (+0.14%), parity inconclusive"),
        (
            replace(LOSS, low=0.0027, high=0.0027),
            "gap +0.00270 in every pair, inside ±0.020 (1%), n=3",
            "+0.0027 (+0.14%), equivalent within 1%",
        ),
        (
            ACCURACY,
            "gap +0.27 pp [+0.11, +0.43] inside ±1.0 pp, n=3",
            "+0.27 pp, equivalent within 1 pp",
        ),
        (
            replace(ACCURACY, verdict="worse", gap=-0.05, low=-0.052, high=-0.048),
            "gap -5.0 pp [-5.2, -4.8] below ±1.0 pp, n=3",
            "-5.0 pp, worse by more than 1 pp",
        ),
    ],
    ids=["equivalent", "worse", "better", "open", "two pairs", "constant", "accuracy", "worse accuracy"],
)
def test_what_parity_stands_on(held, grounds, short):
    assert held.grounds == grounds
    name = "val accuracy" if held.is_share else "val loss"
    assert held.short == f"{name} gap {short}"


def test_identical_losses_have_no_gap():
    same = replace(LOSS, gap=0.0, low=0.0, high=0.0)
    assert same.grounds == "gap of 0 in every pair, inside ±0.020 (1%), n=3"
    assert same.short == "no val loss gap"


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (LOSS, ""),
        (UNTESTED, ""),
        (OPEN, "about 21 more seeds would settle it"),
        (replace(OPEN, further_seeds=None), "more than 100 more seeds would settle it"),
    ],
    ids=["settled", "two pairs", "open", "hopeless"],
)
def test_what_would_settle_parity(held, text):
    assert held.settled_by == text


def test_the_summary_tells_another_n_where_it_is_one():
    assert FOUND.summary == (
        "1.49x [1.46, 1.53] the speed, saves 400 MiB of peak memory (40.0%), "
        "val loss gap +0.0027 (+0.14%), equivalent within 1%"
    )
    fewer = judged_of(num_completed_pairs=4, parities=())
    assert fewer.summary == (
        "1.49x [1.46, 1.53] the speed (n=3), saves 400 MiB of peak memory (40.0%) (n=3), no final loss to compare"
    )


def test_how_runs_ended():
    assert statuses_text({"completed": 3}) == "completed"
    assert statuses_text({"completed": 2, "diverged": 1}) == "2 completed, 1 diverged"


def test_the_time_to_the_loss_of_the_baseline():
    reached = TimeToLoss(
        metric="train/loss",
        target=1.0,
        margin_pct=1.0,
        n=3,
        num_reached=3,
        baseline_s=2.0,
        arm_s=1.0,
        speedup=Estimate(value=2.0, n=3, exact=True),
    )
    assert reached.sentence == "reached the baseline's final train loss (within 1%) 2.00x as fast (n=3)"
    missed = replace(reached, num_reached=0, speedup=None)
    assert missed.sentence == "reached the baseline's final train loss (within 1%) in 0 of 3 pairs"
