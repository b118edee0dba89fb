"""Runs that went on from another run's checkpoint: an arm of their own, held against the run that they went on from."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from synthetic_records import run

from ampsweep.analysis.comparison import compare
from ampsweep.config.modes import arm_after, arm_before, mode_of

FRESH = "the checkpoint has no GradScaler state; a fresh one starts at scale 65536"


class Values:
    def __init__(self, values):
        self.steps = np.array(list(values), dtype=float)
        self.values = np.array(list(values.values()), dtype=float)


@dataclass
class Runs:
    """Runs of 40 steps and runs that began with their checkpoints of step 20, with their histories."""

    entries: list = field(default_factory=list)
    series: dict = field(default_factory=dict)

    def add(self, arm, seed, rows, **more):
        entry = run(arm, seed, pair_key=f"{seed}", **more)
        self.entries.append(entry)
        self.series[entry[0]] = {key: Values(values) for key, values in rows.items()}
        return self

    def whole(self, arm, seed, loss=3.0, rows=None, **more):
        """A run with its loss in the step after the checkpoint."""
        return self.add(
            arm, seed, {"train/loss": {20: 3.1, 21: loss}} | (rows or {}), directory=f"{arm}-{seed}", **more
        )

    def resumed(self, saved_in, arm, seed, loss=3.0, rows=None, notes=(), step=20, **more):
        origin = {"from_step": step, "saved_in": saved_in, "saved_by": f"{saved_in}-{seed}", "notes": [*notes]}
        attempts = [origin, {"from_step": step + 5, "notes": ["damaged: going on from previous.pt"]}]
        name = f"resumed-{arm}-{saved_in}-{step}-{seed}"
        rows = {"train/loss": {step + 1: loss}} | (rows or {})
        return self.add(arm_after(arm, saved_in, step), seed, rows, directory=name, attempts=attempts, **more)

    def compared(self):
        return compare(self.entries, baseline="fp32", margin_pct=1.0, series=self.series)

    def workload(self):
        (found,) = self.compared().workloads
        return found

    def of(self, saved_in, resumed_in):
        found = [one for one in self.workload().resumed if (one.saved_in, one.resumed_in) == (saved_in, resumed_in)]
        (one,) = found
        return one


def test_a_jump_is_that_of_the_same_step_of_its_origin():
    runs = Runs()
    for seed, (loss, jump) in enumerate([(3.0, 0.25), (4.0, 0.5), (5.0, 0.75)]):
        runs.whole("fp32", seed, loss).resumed("fp32", "pure_bf16", seed, loss + jump)
    one = runs.of("fp32", "pure_bf16")
    assert (one.loss_jump.mean, one.loss_jump.sd, one.loss_jump.n, one.step) == (0.5, 0.25, 3, 20)
    assert one.loss.mean == 4.0


def test_they_are_an_arm_of_their_own_that_pairs():
    runs = Runs()
    for seed in range(3):
        runs.whole("fp32", seed).whole("amp_bf16", seed).resumed("fp32", "amp_bf16", seed, val_loss=2.5)
    arms = {arm.arm: arm for arm in runs.workload().arms}
    assert [*arms] == ["fp32", "amp_bf16", "amp_bf16 after step 20 of fp32"]
    assert {arm.num_runs for arm in arms.values()} == {3}
    assert (arms["amp_bf16"].loss_gap.value, arms["amp_bf16 after step 20 of fp32"].loss_gap.value) == (0.0, 0.5)


def test_what_a_part_of_a_training_cannot_tell_is_absent():
    runs = Runs()
    for seed in range(3):
        runs.whole("fp32", seed).resumed("fp32", "amp_bf16", seed, step_ms=10.0, peak_mib=10.0)
        runs.whole("amp_bf16", seed, step_ms=90.0)
    verdict = runs.workload().verdict
    assert verdict.recommendation.arm == "amp_bf16", "though the other took a ninth of the time in its own steps"
    (refused,) = [one for one in verdict.recommendation.standings if one.refusal is not None]
    assert (refused.arm, refused.reason) == (
        "amp_bf16 after step 20 of fp32",
        "its first steps were in fp32: its speed and memory are those of the rest alone",
    )
    assert [one.arm for one in verdict.front.arms] == ["fp32", "amp_bf16"]


def test_going_on_in_the_same_arm_is_that_arm():
    runs = Runs().whole("fp32", 0).resumed("fp32", "fp32", 0)
    assert [arm.arm for arm in runs.workload().arms] == ["fp32"]
    assert runs.of("fp32", "fp32").loss_jump.mean == 0


def test_an_arm_knows_its_mode_whatever_it_comes_after():
    once = arm_after("amp_fp16+init_scale=1024", "fp32", 20)
    twice = arm_after("fp32", once, 30)
    assert twice == "fp32 after step 30 of amp_fp16+init_scale=1024 after step 20 of fp32"
    assert (mode_of(twice).name, mode_of(once).name) == ("fp32", "amp_fp16")
    assert (arm_before(twice), arm_before(once), arm_before("fp32")) == (once, "fp32", None)
    assert arm_after("fp32", twice, 40) == twice, "it goes on as it was"


def test_rows_stand_in_the_order_of_reports():
    runs = Runs().whole("fp32", 0)
    for saved_in in ("pure_bf16", "amp_fp16", "fp32"):
        for arm in ("amp_fp16", "fp32"):
            runs.resumed(saved_in, arm, 0)
    modes = ("fp32", "amp_fp16", "pure_bf16")
    expected = [(saved_in, arm) for saved_in in modes for arm in ("fp32", "amp_fp16")]
    assert [(one.saved_in, one.resumed_in) for one in runs.workload().resumed] == expected


def test_other_steps_are_other_arms():
    runs = Runs().whole("fp32", 0, val_loss=2.0)
    runs.resumed("fp32", "amp_bf16", 0, step=10, val_loss=3.0).resumed("fp32", "amp_bf16", 0, val_loss=2.5)
    assert [(one.step, one.num_runs) for one in runs.workload().resumed] == [(10, 1), (20, 1)]
    gaps = {arm.arm: arm.loss_gap.value for arm in runs.workload().arms if arm.loss_gap is not None}
    assert gaps == {"amp_bf16 after step 10 of fp32": 1.0, "amp_bf16 after step 20 of fp32": 0.5}


@pytest.mark.parametrize(
    ("before", "after", "skipped"),
    [
        ({}, {"amp/skipped_steps": {21: 1, 25: 3, 30: 4, 35: 6}}, 4),
        ({"amp/skipped_steps": {20: 5, 21: 5}}, {"amp/skipped_steps": {21: 5, 30: 7}}, 2),
        ({}, {}, None),
    ],
    ids=["a fresh scaler", "a scaler that goes on", "none"],
)
def test_steps_skipped_near_the_checkpoint_are_counted(before, after, skipped):
    runs = Runs().whole("fp32", 0, rows=before).resumed("fp32", "amp_fp16", 0, rows=after)
    assert runs.of("fp32", "amp_fp16").skipped_steps == skipped


def test_what_is_not_known_is_absent():
    runs = Runs().resumed("amp_bf16", "fp32", 0)
    runs.whole("fp32", 0, math.nan).resumed("fp32", "amp_bf16", 0)
    runs.whole("pure_bf16", 0).resumed("pure_bf16", "fp32", 0, proof={"flops": {"bfloat16": 1}})
    assert runs.of("amp_bf16", "fp32").loss_jump is None, "the run that it went on from is not there"
    assert runs.of("fp32", "amp_bf16").loss_jump is None, "its loss is not finite"
    assert runs.of("pure_bf16", "fp32").loss_jump is None, "it is disproved"
    runs = Runs().whole("fp32", 0).resumed("fp32", "amp_bf16", 0)
    runs.entries[1][1].pair_key = "1"
    (one,) = [one for workload in runs.compared().workloads for one in workload.resumed]
    assert one.loss_jump is None, "its batches are of another seed"


def test_a_run_that_diverges_later_has_its_jump():
    runs = Runs().whole("fp32", 0).resumed("fp32", "amp_fp16", 0, 3.5, status="diverged", error="loss is nan")
    assert runs.of("fp32", "amp_fp16").loss_jump.mean == 0.5


def test_what_did_not_carry_over_is_a_note_on_the_arm():
    runs = Runs().whole("fp32", 0).resumed("fp32", "amp_fp16", 0, notes=[FRESH])
    (arm,) = [one for one in runs.workload().arms if one.arm == "amp_fp16 after step 20 of fp32"]
    assert [note.sentence for note in arm.notes] == [f"{FRESH} (seed 0)"]
