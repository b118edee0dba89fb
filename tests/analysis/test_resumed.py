"""Runs that went on from another run's checkpoint: an arm of their own, held against the run that they went on from."""

import math

import numpy as np
from synthetic_records import run

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.time_to_loss import MetricSeries
from ampsweep.config.modes import arm_after, arm_before, mode_of

SKIPPED = "amp/skipped_steps"


class Runs:
    def __init__(self):
        self.entries, self.series = [], {}

    def add(self, arm, seed, rows, **more):
        entry = run(arm, seed, **{"pair_key": f"{seed}", **more})
        self.entries.append(entry)
        self.series[entry[0]] = {
            key: MetricSeries(np.array([*values], dtype=float), np.array([*values.values()], dtype=float))
            for key, values in rows.items()
        }
        return self

    def whole(self, arm, seed, loss=3.0, rows=None, **more):
        rows = {"train/loss": {20: 3.1, 21: loss}} | (rows or {})
        return self.add(arm, seed, rows, directory=f"{arm}-{seed}", **more)

    def resumed(self, saved_in, arm, seed, loss=3.0, rows=None, notes=(), step=20, **more):
        origin = {"from_step": step, "saved_in": saved_in, "saved_by": f"{saved_in}-{seed}", "notes": [*notes]}
        attempts = [origin, {"from_step": step + 5, "notes": ["damaged: going on from previous.pt"]}]
        more |= {"directory": f"resumed-{arm}-{saved_in}-{step}-{seed}", "attempts": attempts}
        return self.add(arm_after(arm, saved_in, step), seed, {"train/loss": {step + 1: loss}} | (rows or {}), **more)

    def workload(self):
        return compare(self.entries, baseline="fp32", margin_pct=1.0, series=self.series).workloads[0]

    def of(self, saved_in, resumed_in):
        (one,) = [of for of in self.workload().resumed if (of.saved_in, of.resumed_in) == (saved_in, resumed_in)]
        return one


def test_a_jump_is_that_of_the_same_step_of_its_origin():
    runs = Runs()
    for seed, (loss, jump) in enumerate([(3.0, 0.25), (4.0, 0.5), (5.0, 0.75)]):
        runs.whole("fp32", seed, loss).resumed("fp32", "pure_bf16", seed, loss + jump)
    one = runs.of("fp32", "pure_bf16")
    assert (one.loss_jump.mean, one.loss_jump.sd, one.loss_jump.n, one.step) == (0.5, 0.25, 3, 20)
    assert one.loss.mean == 4.0
    later = Runs().whole("fp32", 0)
    later.resumed("fp32", "amp_fp16", 0, 3.5, notes=["a fresh scaler"], status="diverged", error="loss is nan")
    assert later.of("fp32", "amp_fp16").loss_jump.mean == 0.5, "a run that diverges later has its jump"
    notes = later.workload().arms[1].notes
    assert [note.sentence for note in notes] == ["diverged: loss is nan (seed 0)", "a fresh scaler (seed 0)"]


def test_they_are_an_arm_of_their_own_that_pairs_and_is_refused():
    runs = Runs()
    for seed in range(3):
        runs.whole("fp32", seed).resumed("fp32", "amp_bf16", seed, step_ms=10.0, peak_mib=10.0, val_loss=2.5)
        runs.whole("amp_bf16", seed, step_ms=90.0)
    found = runs.workload()
    resumed = "amp_bf16 after step 20 of fp32"
    arms = {arm.arm: arm for arm in found.arms}
    assert [*arms] == ["fp32", "amp_bf16", resumed]
    assert {arm.num_runs for arm in arms.values()} == {3}
    assert (arms["amp_bf16"].loss_gap.value, arms[resumed].loss_gap.value) == (0.0, 0.5)
    assert found.verdict.recommendation.arm == "amp_bf16", "though the other took a ninth of the time in its own steps"
    (refused,) = [one for one in found.verdict.recommendation.standings if one.refusal is not None]
    why = "its first steps were in fp32: its speed and memory are those of the rest alone"
    assert (refused.arm, refused.reason) == (resumed, why)
    assert [one.arm for one in found.verdict.front.arms] == ["fp32", "amp_bf16"]
    same = Runs().whole("fp32", 0).resumed("fp32", "fp32", 0)
    assert [arm.arm for arm in same.workload().arms] == ["fp32"], "a run that goes on in its arm stays in it"
    assert same.of("fp32", "fp32").loss_jump.mean == 0


def test_an_arm_knows_its_mode_whatever_it_comes_after():
    once = arm_after("amp_fp16+init_scale=1024", "fp32", 20)
    twice = arm_after("fp32", once, 30)
    assert twice == "fp32 after step 30 of amp_fp16+init_scale=1024 after step 20 of fp32"
    assert (mode_of(twice).name, mode_of(once).name) == ("fp32", "amp_fp16")
    assert (arm_before(twice), arm_before(once), arm_before("fp32")) == (once, "fp32", None)
    assert arm_after("fp32", twice, 40) == twice, "it goes on as it was"


def test_rows_are_ordered_and_other_steps_are_other_arms():
    modes = ("fp32", "amp_fp16", "pure_bf16")
    expected = [(saved_in, arm) for saved_in in modes for arm in ("fp32", "amp_fp16")]
    runs = Runs().whole("fp32", 0)
    for saved_in, arm in reversed(expected):
        runs.resumed(saved_in, arm, 0)
    assert [(one.saved_in, one.resumed_in) for one in runs.workload().resumed] == expected
    runs = Runs().whole("fp32", 0, val_loss=2.0).resumed("fp32", "amp_bf16", 0, val_loss=2.5)
    found = runs.resumed("fp32", "amp_bf16", 0, step=10, val_loss=3.0).workload()
    assert [(one.step, one.num_runs) for one in found.resumed] == [(10, 1), (20, 1)]
    gaps = {arm.arm: arm.loss_gap.value for arm in found.arms if arm.loss_gap is not None}
    assert gaps == {"amp_bf16 after step 10 of fp32": 1.0, "amp_bf16 after step 20 of fp32": 0.5}


def test_steps_skipped_near_the_checkpoint_are_counted():
    for before, after, skipped in (
        ({}, {SKIPPED: {21: 1, 25: 3, 30: 4, 35: 6}}, 4),  # a fresh scaler
        ({SKIPPED: {20: 5, 21: 5}}, {SKIPPED: {21: 5, 30: 7}}, 2),  # a scaler that goes on
        ({}, {}, None),
    ):
        runs = Runs().whole("fp32", 0, rows=before).resumed("fp32", "amp_fp16", 0, rows=after)
        assert runs.of("fp32", "amp_fp16").skipped_steps == skipped


def test_without_a_comparable_origin_there_is_no_jump():
    for saved_in, loss, more in (
        (None, 3.0, {}),
        ("amp_bf16", math.nan, {}),
        ("pure_bf16", 3.0, {"proof": {"flops": {"bfloat16": 1}}}),
        ("amp_bf16", 3.0, {"pair_key": "another seed's batches"}),
    ):
        runs = Runs() if saved_in is None else Runs().whole(saved_in, 0, loss)
        runs.resumed(saved_in or "amp_bf16", "fp32", 0, **more)
        found = compare(runs.entries, baseline="fp32", margin_pct=1.0, series=runs.series)
        assert [one.loss_jump for workload in found.workloads for one in workload.resumed] == [None]
