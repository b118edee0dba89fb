"""Runs that change their precision in the middle: held against the run that they go on from, and nothing else."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from synthetic_records import run

from ampsweep.analysis.comparison import compare

SEAM = {"seam": {"step": 20, "saved_in": None}}


@dataclass
class Runs:
    """Runs around a seam at step 20 of 40, with their histories."""

    entries: list = field(default_factory=list)
    series: dict = field(default_factory=dict)

    def add(self, arm, seed, rows, *, saved_in=None, step=20, val_loss=2.0, **more):
        directory = f"{arm}-{saved_in}-{step}-s{seed}"
        entry = run(
            arm,
            seed,
            facts={"seam_step": step, "saved_in": saved_in},
            config={"seam": {"step": step, "saved_in": saved_in}},
            pair_key=f"{step} {seed}",
            directory=directory,
            val_loss=val_loss,
            **more,
        )
        self.entries.append(entry)
        self.series[entry[0]] = {key: Values(values) for key, values in rows.items()}
        return self

    def whole(self, arm, seed, loss=3.0, at_seam=2.5, **more):
        """An uninterrupted run with its loss in the step after the seam."""
        rows = {"train/loss": {20: 3.1, 21: loss}, "val/loss": {20: at_seam, 40: 2.0}, **more.pop("rows", {})}
        return self.add(arm, seed, rows, **more)

    def resumed(self, saved_in, arm, seed, loss=3.0, at_seam=2.5, **more):
        rows = {"train/loss": {21: loss}, "seam/val_loss": {21: at_seam}, **more.pop("rows", {})}
        return self.add(arm, seed, rows, saved_in=saved_in, **more)

    def compared(self, **more):
        return compare(self.entries, baseline="fp32", margin_pct=1.0, series=self.series, **more)

    def only(self):
        (found,) = self.compared().seams
        return found


class Values:
    def __init__(self, values):
        self.steps = np.array(list(values), dtype=float)
        self.values = np.array(list(values.values()), dtype=float)


def test_a_jump_is_that_of_the_same_step_of_the_same_seed():
    runs = Runs()
    for seed, (loss, jump) in enumerate([(3.0, 0.25), (4.0, 0.5), (5.0, 0.75)]):
        runs.whole("fp32", seed, loss).resumed("fp32", "pure_bf16", seed, loss + jump, at_seam=2.5 + 2 * jump)
    one = runs.only().of("fp32", "pure_bf16")
    assert (one.loss_jump.mean, one.loss_jump.sd, one.loss_jump.n, one.largest_jump) == (0.5, 0.25, 3, 0.75)
    assert one.val_loss_jump.mean == 1.0
    assert runs.only().loss == 4.0


def test_the_same_arm_is_bitwise_only_if_nothing_differs():
    runs = Runs().whole("fp32", 0).resumed("fp32", "fp32", 0)
    assert runs.only().of("fp32", "fp32").is_bitwise
    runs = Runs().whole("fp32", 0).resumed("fp32", "fp32", 0, val_loss=2.0 + 1e-15)
    assert not runs.only().of("fp32", "fp32").is_bitwise
    runs = Runs().whole("fp32", 0).whole("fp32", 1)
    runs.resumed("fp32", "fp32", 0, 3.0 + 1e-3).resumed("fp32", "fp32", 1, 3.0 - 1e-3)
    assert not runs.only().of("fp32", "fp32").is_bitwise, "though its mean is zero"


def test_no_other_comparison_knows_of_resumed_runs():
    runs = Runs()
    for seed in range(3):
        runs.whole("fp32", seed).whole("amp_bf16", seed).resumed("fp32", "amp_bf16", seed)
    found = runs.compared()
    (workload,) = found.workloads
    assert {arm.arm: arm.num_runs for arm in workload.arms} == {"fp32": 3, "amp_bf16": 3}
    assert {entry.directory for entry in workload.runs}.isdisjoint(entry.directory for entry in found.seams[0].runs)


def test_arms_stand_in_the_order_of_reports():
    runs = Runs()
    for saved_in in ("pure_bf16", "amp_fp16", "fp32"):
        for arm in ("amp_fp16", "fp32"):
            runs.resumed(saved_in, arm, 0)
    found = runs.only()
    assert (found.saved_in, found.resumed_in) == (("fp32", "amp_fp16", "pure_bf16"), ("fp32", "amp_fp16"))
    assert found.of("fp32", "pure_bf16") is None


def test_seams_at_other_steps_are_other_comparisons():
    runs = Runs()
    for step in (10, 20):
        runs.whole("fp32", 0, step=step).resumed("fp32", "amp_bf16", 0, step=step)
    assert [one.step for one in runs.compared().seams] == [10, 20]
    assert len(runs.compared().workloads) == 2


@pytest.mark.parametrize(
    ("gaps", "position"),
    [((0.001, 0.0, -0.001), "inside"), ((0.1, 0.11, 0.09), "above"), ((-0.1, -0.11, -0.09), "below")],
)
def test_a_gap_at_the_end_is_held_against_the_margin(gaps, position):
    runs = Runs()
    for seed, gap in enumerate(gaps):
        runs.whole("fp32", seed).resumed("fp32", "amp_bf16", seed, val_loss=2.0 + gap)
    one = runs.only().of("fp32", "amp_bf16")
    assert (one.final_position, one.margin) == (position, 0.02)
    assert one.final_gap.mean == pytest.approx(sum(gaps) / 3)


def test_two_seeds_decide_nothing():
    runs = Runs()
    for seed in range(2):
        runs.whole("fp32", seed).resumed("fp32", "amp_bf16", seed)
    assert runs.only().of("fp32", "amp_bf16").final_position is None


@pytest.mark.parametrize(
    ("before", "after", "skipped"),
    [
        ({}, {"amp/skipped_steps": {21: 1, 25: 3, 30: 4, 35: 6}}, 4),
        ({"amp/skipped_steps": {20: 5, 21: 5}}, {"amp/skipped_steps": {21: 5, 30: 7}}, 2),
        ({}, {}, None),
    ],
    ids=["a fresh scaler", "a scaler that goes on", "none"],
)
def test_steps_skipped_near_the_seam_are_counted(before, after, skipped):
    runs = Runs().whole("fp32", 0, rows=before).resumed("fp32", "amp_fp16", 0, rows=after)
    assert runs.only().of("fp32", "amp_fp16").skipped_steps == skipped


def test_what_is_not_known_is_absent():
    runs = Runs().resumed("amp_bf16", "fp32", 0)
    runs.whole("fp32", 0, math.nan).resumed("fp32", "amp_bf16", 0)
    runs.whole("pure_bf16", 1).resumed("pure_bf16", "fp32", 0)
    found = runs.only()
    assert found.of("amp_bf16", "fp32").loss_jump is None, "its uninterrupted run is not there"
    assert found.of("fp32", "amp_bf16").loss_jump is None, "its loss is not finite"
    assert found.of("pure_bf16", "fp32").loss_jump is None, "it is of another seed"
    assert found.of("amp_bf16", "fp32").is_bitwise is None
    assert found.loss is None


def test_a_run_that_diverges_later_has_its_jump():
    runs = Runs().whole("fp32", 0).resumed("fp32", "amp_fp16", 0, 3.5, status="diverged", error="loss is nan")
    one = runs.only().of("fp32", "amp_fp16")
    assert (one.loss_jump.mean, one.final_gap, one.statuses) == (0.5, None, {"diverged": 1})
    assert one.error == "loss is nan"


def test_a_disproved_run_has_none():
    runs = Runs().whole("fp32", 0).resumed("fp32", "amp_fp16", 0, proof={"contradictions": ["no float16"]})
    assert runs.only().of("fp32", "amp_fp16").loss_jump is None


def test_notes_are_those_of_the_process_that_began_at_the_seam():
    attempts = [
        {"from_step": 20, "notes": ["a fresh scaler"]},
        {"from_step": 25, "notes": ["damaged: going on from previous.pt"]},
    ]
    runs = Runs().whole("fp32", 0).resumed("fp32", "amp_fp16", 0, attempts=attempts)
    (note,) = runs.only().of("fp32", "amp_fp16").notes
    assert (note.cause, note.seeds) == ("a fresh scaler", (0,))
