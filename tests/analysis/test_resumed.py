"""Runs that went on from a checkpoint of another: an arm of their own with a jump of its loss (`golden/resumed.md`)."""

import math

import numpy as np
from synthetic_records import document, figures, run, shown

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.time_to_loss import MetricSeries
from ampsweep.config.modes import arm_after, arm_before, mode_of

SKIPPED = "amp/skipped_steps"
MODES = ("fp32", "amp_fp16", "pure_bf16")


def whole(arm="fp32", seed=0, loss=3.0, rows=(), **more):
    """A run, and its history by step."""
    entry = run(arm, seed, **{"pair_key": f"{seed}", "directory": f"{arm}-{seed}"} | more)
    return entry, {"train/loss": {20: 3.1, 21: loss}} | dict(rows)


def resumed(saved_in, arm, seed=0, loss=3.0, rows=(), notes=(), step=20, **more):
    """A run that went on in `arm` from a checkpoint, was interrupted, and went on again from its own."""
    origin = {"from_step": step, "saved_in": saved_in, "saved_by": f"{saved_in}-{seed}", "notes": [*notes]}
    attempts = [origin, {"from_step": step + 5, "notes": ["damaged: going on from previous.pt"]}]
    more = {"directory": f"resumed-{arm}-{saved_in}-{step}-{seed}", "attempts": attempts} | more
    return whole(arm_after(arm, saved_in, step), seed, rows={"train/loss": {step + 1: loss}} | dict(rows), **more)


def jump(seed, loss, by):
    return whole(seed=seed, loss=loss), resumed("fp32", "pure_bf16", seed, loss + by)


def faster(seed):
    after = resumed("fp32", "amp_bf16", seed, step_ms=10.0, peak_mib=10.0, val_loss=2.5)
    return whole("fp32", seed), whole("amp_bf16", seed, step_ms=90.0), after


CASES = {
    "jumps of three seeds": [*jump(0, 3.0, 0.25), *jump(1, 4.0, 0.5), *jump(2, 5.0, 0.75)],
    "diverging later": [
        whole(),
        resumed("fp32", "amp_fp16", 0, 3.5, notes=["a fresh scaler"], status="diverged", error="loss is nan"),
    ],
    "fast in its own steps": [one for seed in range(3) for one in faster(seed)],
    "in the same arm": [whole(), resumed("fp32", "fp32")],
    "in order": [whole(), *(resumed(saved_in, arm) for saved_in in MODES[::-1] for arm in ("amp_fp16", "fp32"))],
    "other steps": [
        whole(val_loss=2.0),
        *(resumed("fp32", "amp_bf16", step=step, val_loss=loss) for step, loss in ((20, 2.5), (10, 3.0))),
    ],
    "a fresh scaler": [whole(), resumed("fp32", "amp_fp16", rows={SKIPPED: {21: 1, 25: 3, 30: 4, 35: 6}})],
    "a scaler that goes on": [
        whole(rows={SKIPPED: {20: 5, 21: 5}}),
        resumed("fp32", "amp_fp16", rows={SKIPPED: {21: 5, 30: 7}}),
    ],
    "without its origin": [resumed("amp_bf16", "fp32")],
    "from a loss of NaN": [whole("amp_bf16", loss=math.nan), resumed("amp_bf16", "fp32")],
    "disproved": [whole("amp_bf16"), resumed("amp_bf16", "fp32", proof={"flops": {"bfloat16": 1}})],
    "of other batches": [whole("amp_bf16"), resumed("amp_bf16", "fp32", pair_key="another seed's batches")],
}


def described(runs):
    def series(rows):
        return MetricSeries(np.array([*rows], dtype=float), np.array([*rows.values()], dtype=float))

    entries = [entry for entry, _ in runs]
    known = {entry[0]: {key: series(rows) for key, rows in histories.items()} for entry, histories in runs}
    for workload in compare(entries, baseline="fp32", margin_pct=1.0, series=known).workloads:
        yield from (f"  - {figures(one)}" for one in workload.resumed)
        for arm in workload.arms:
            notes = [note.sentence for note in arm.notes if not note.sentence.startswith("not paired")]
            yield f"  - {'; '.join([f'{arm.num_runs} {arm.arm}, gap {shown(arm.loss_gap)}', *notes])}"
        found = workload.verdict.recommendation
        judged = workload.verdict.arms
        yield from (f"  - {arm.arm}: {arm.refusal.sentence}" for arm in judged if arm.refusal is not None)
        on_front = workload.verdict.front and [one.arm for one in workload.verdict.front.arms]
        yield f"  - recommended: {found.arm}, on the front: {on_front}"


def test_resumed_runs_and_their_arms(golden):
    golden("resumed.md", document(cases={name: "\n".join(["", *described(runs)]) for name, runs in CASES.items()}))


def test_an_arm_knows_its_mode_whatever_it_comes_after():
    once = arm_after("amp_fp16+init_scale=1024", "fp32", 20)
    twice = arm_after("fp32", once, 30)
    assert twice == "fp32 after step 30 of amp_fp16+init_scale=1024 after step 20 of fp32"
    assert (mode_of(twice).name, mode_of(once).name) == ("fp32", "amp_fp16")
    assert (arm_before(twice), arm_before(once), arm_before("fp32")) == (once, "fp32", None)
    assert arm_after("fp32", twice, 40) == twice, "it goes on as it was"
