"""Trainings that are not the suite's: which keys of their config pair them, and by which metric they are judged."""

from dataclasses import replace

import pytest
from synthetic_records import run

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.figure_keys import FigureKeys, chosen_metric
from ampsweep.metrics import goal_of

ARMS = ("no", "bf16", "fp16")


def foreign(arm, seed, own=None, *, source="loop", **more):
    """A record of somebody's loop with its own config; its pair key knows the seed only."""
    name = "-".join(map(str, (arm, seed, *(own or {}).values())))
    of = run(arm, seed, pair_key=f"k{seed}", directory=name, config={"own": own or {}}, source=source, **more)
    return of[0], replace(of[1], config={"own": own or {}})


def compared(entries, **more):
    return compare(entries, baseline="no", margin_pct=1.0, **more)


def pairs(found):
    """The number of pairs of each arm in each workload, by the workload's title."""
    return {of.title: {arm.arm: arm.num_pairs for arm in of.arms if not arm.is_baseline} for of in found.workloads}


def each(own_of, arms=ARMS, seeds=range(3)):
    return [foreign(arm, seed, own_of(arm, seed)) for arm in arms for seed in seeds]


@pytest.mark.parametrize(
    ("own_of", "notes"),
    [
        pytest.param(
            lambda arm, seed: {"lr": 0.1, "data_seed": seed, "shuffle": seed % 2}, [], id="of_all_and_of_seeds"
        ),
        pytest.param(
            lambda arm, seed: {"lr": 1e-3 if arm == "no" else 1e-4},
            ["the arms also differ in lr: 0.001 (no) or 0.0001 (bf16, fp16)"],
            id="of_arms",
        ),
        pytest.param(
            lambda arm, seed: {"init_scale": 1024} if arm == "fp16" else {},
            ["the arms also differ in init_scale: not set (no, bf16) or 1024 (fp16)"],
            id="of_one_arm_alone",
        ),
        pytest.param(
            lambda arm, seed: {"fp16": arm == "fp16", "trainer.precision": arm, "amp_dtype": arm},
            [],
            id="the_arms_themselves",
        ),
        pytest.param(
            lambda arm, seed: {"run_name": f"{arm}{seed}", "output_dir": f"o/{arm}{seed}", "host": f"n{seed % 2}"},
            [],
            id="names_and_places",
        ),
        pytest.param(lambda arm, seed: {"arguments": [arm, str(seed)]}, [], id="the_words_of_arm_and_seed"),
        pytest.param(lambda arm, seed: {"arguments": [arm, "small"]}, [], id="the_words_of_the_arm"),
        pytest.param(
            lambda arm, seed: {"dropout": len(arm) / 10 + seed / 100},
            ["runs were paired whatever they have as dropout, of which each run has another value"],
            id="another_in_each_run",
        ),
        pytest.param(
            lambda arm, seed: {"warmup": (0.1 if arm == "no" else 0.2) + seed / 10},
            ["the arms also differ in warmup: 0.1, 0.2 and 1 more (no) or 0.2, 0.30000000000000004 and 1 more (bf16)"],
            id="another_for_each_seed_of_an_arm",
        ),
    ],
)
def test_keys_that_keep_nothing_from_pairing(own_of, notes):
    arms = ARMS[:2] if own_of("no", 0).keys() & {"warmup", "dropout"} else ARMS
    found = compared(each(own_of, arms))
    assert [sum(of.values()) for of in pairs(found).values()] == [3 * (len(arms) - 1)], pairs(found)
    assert [note.sentence for note in found.notes] == notes


def test_keys_shared_by_arms_distinguish_workloads():
    entries = [
        foreign(arm, seed, {"model.width": width, "lr": 1 / width, "run_name": f"{arm}{seed}{width}"})
        for arm in ARMS
        for seed in range(3)
        for width in (64, 256)
        if (arm, width) != ("fp16", 256)
    ]
    assert pairs(compared(entries)) == {
        "model.width 64": {"bf16": 3, "fp16": 3},
        "model.width 256": {"bf16": 3},
    }


def test_a_key_swept_in_each_arm_without_a_common_value_pairs_nothing():
    entries = [
        foreign(arm, seed, {"batch": batch})
        for arm, batches in {"no": (32, 64), "bf16": (128, 256)}.items()
        for seed in range(3)
        for batch in batches
    ]
    found = compared(entries)
    assert sum(count for of in pairs(found).values() for count in of.values()) == 0
    reasons = {problem.finding.why for problem in found.problems}
    assert "the nearest no run differs in batch (32 there, 128 here)" in reasons


def test_trainings_of_different_sources_never_pair():
    entries = [foreign("no", seed) for seed in range(3)] + [foreign("bf16", seed, source="wandb") for seed in range(3)]
    found = compared(entries)
    assert pairs(found) == {"source loop": {}, "source wandb": {"bf16": 0}}


def test_a_seed_that_only_the_baseline_has_is_named():
    found = compared([foreign(arm, seed) for arm in ("no", "bf16") for seed in range(4) if (arm, seed) != ("bf16", 2)])
    (bf16,) = [arm for arm in found.workloads[0].arms if arm.arm == "bf16"]
    assert [note.sentence for note in bf16.notes] == ["there is no run of seed 2, with which the baseline has one"]


@pytest.mark.parametrize(
    ("key", "shift", "goal", "words"),
    [
        ("val/f1", 0.05, "maximize", "better"),
        ("val/f1", -0.05, "maximize", "worse"),
        ("val/f1", 0.001, "maximize", "equivalent"),
        ("val/f1", 0.05, "minimize", "worse"),
        ("eval/loss", -0.05, "minimize", "better"),
    ],
)
def test_any_metric_decides_parity_by_its_goal(key, shift, goal, words):
    entries = [
        run(arm, seed, val_loss=None, summary={key: 0.8 + 1e-4 * seed + (shift if arm != "fp32" else 0.0)})
        for arm in ("fp32", "amp_bf16")
        for seed in range(3)
    ]
    keys = FigureKeys(metric=key, is_higher_better=goal == "maximize", is_recorded=True)
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, keys=keys).workloads
    (arm,) = workload.verdict.arms
    assert arm.judgements.parity == words
    assert (arm.refusal is not None) == (words == "worse")
    on_front = {of.arm: of.loss for of in workload.verdict.front.arms}
    assert on_front["amp_bf16"] == {"equivalent": "same"}.get(words, words)
    (parity,) = arm.judgements.parities
    place = "inside" if words == "equivalent" else "above" if shift > 0 else "below"
    assert parity.grounds.split(" ±")[0].endswith(place)


def test_the_metric_is_the_loss_that_there_is_and_its_name_tells_the_goal():
    with_eval = [run("fp32", val_loss=None, summary={"eval/loss": 1.0, "val_loss": 1.0})[1]]
    assert chosen_metric(with_eval, "val/loss", None).metric == "eval/loss"
    assert chosen_metric([run("fp32")[1], *with_eval], "val/loss", None).metric == "val/loss"
    nested = run("fp32", val_loss=None, summary={"val.loss": 1.0})[1]
    assert chosen_metric([nested], "val/loss", None).metric == "val.loss"
    missing = chosen_metric(with_eval, "val/auc", None)
    assert (missing.metric, missing.is_higher_better, missing.is_recorded) == ("val/auc", True, False)
    assert not chosen_metric(with_eval, "val/auc", "minimize").is_higher_better
    better = {
        "eval/rouge1": True,
        "val_acc": True,
        "top5_accuracy": True,
        "mAP50": True,
        "wer": False,
        "f1_loss": False,
    }
    assert {key: goal_of(key) == "maximize" for key in better} == better
    assert goal_of("reward") is None
