"""Comparison of trainings that change their precision in the middle with those that do not."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from ampsweep.analysis.equivalence import Position, two_one_sided_tests
from ampsweep.analysis.run_findings import RunEntry, RunFinding, merged, run_entry, statuses_text
from ampsweep.analysis.runs import SKIPPED_STEPS, VAL_LOSS, Run, Scalar
from ampsweep.analysis.statistics import MIN_PAIRS, Spread, spread
from ampsweep.analysis.time_to_loss import TRAIN_LOSS, MetricSeries
from ampsweep.analysis.workloads import Workload, arm_rank
from ampsweep.text import first_line, loss, percent, plural, signed

SEAM_VAL_LOSS: Final = "seam/val_loss"
SEAM_KEYS: Final = (TRAIN_LOSS, VAL_LOSS, SEAM_VAL_LOSS, SKIPPED_STEPS)
"""Metrics of the history that are looked at around a seam."""

NUM_NEAR_STEPS: Final = 10
"""Steps after the seam in which a scaler that starts afresh has found its scale."""

_NO_CHANGE: Final = "No change of precision"

_Number = TypeVar("_Number", int, float)
AllSeries = Mapping[Path, Mapping[str, MetricSeries]]
"""Run directory -> metric key -> series."""


_FINALLY: Final[dict[Position | None, str]] = {
    "above": "still worse by more than that",
    "below": "better by more than that",
    "open": "undecided",
}


class NotCarriedOver(RunFinding):
    """A part of the checkpoint that did not carry over as it was saved, in the record's words."""


@dataclass(frozen=True, kw_only=True)
class Seam:
    """Runs saved in one arm and resumed in another, each against the uninterrupted run that it goes on from.

    Differences are means over seeds, positive where the resumed run has the higher loss; None where no pair has both.
    """

    saved_in: str
    resumed_in: str
    num_runs: int
    statuses: dict[str, int]
    error: str | None
    """The error of the first run that did not complete."""
    loss_jump: Spread | None
    """Training loss of the first step after the seam: the same batch, and the checkpoint's weights in both runs."""
    largest_jump: float | None
    """The jump of the seed in which it is farthest from zero."""
    val_loss_jump: Spread | None
    """Validation loss of the checkpoint itself, before any step."""
    final_gap: Spread | None
    """Validation loss at the end of both runs."""
    final_position: Position | None
    """The place of the final gap against +-margin; None under three pairs."""
    margin: float | None
    """The gap that counts as none: `margin_pct` of the uninterrupted runs' mean final loss."""
    skipped_steps: int | None
    """Steps that the scaler skipped in the first ten after the seam, total over runs; None without a scaler."""
    notes: tuple[NotCarriedOver, ...]

    @property
    def is_same_arm(self) -> bool:
        return self.saved_in == self.resumed_in

    @property
    def is_bitwise(self) -> bool | None:
        """True if every run went on exactly as the uninterrupted one, as far as losses show; None if none shows."""
        known = [one for one in (self.loss_jump, self.val_loss_jump, self.final_gap) if one is not None]
        return all(one.mean == 0 and not one.sd for one in known) if known else None

    @property
    def name(self) -> str:
        """'fp32 to amp_bf16'."""
        return f"{self.saved_in} to {self.resumed_in}"

    @property
    def closed_text(self) -> str:
        """A word on whether the gap at the end counts as none."""
        if self.final_gap is None:
            return "-"
        if self.final_position is None:
            return "exact" if self.final_gap.mean == 0 else f"{MIN_PAIRS} seeds are needed"
        return {"inside": "closed", "above": "worse", "below": "better", "open": "undecided"}[self.final_position]

    @property
    def is_apart(self) -> bool:
        """True if the gap at the end lies beyond the margin; of fewer than three pairs if their mean does."""
        if self.final_position is not None:
            return self.final_position in ("above", "below")
        return self.margin is not None and abs(self.mean_gap) > self.margin

    @property
    def jump_size(self) -> float:
        """The distance of the largest jump from zero; 0 where none is known."""
        return abs(self.largest_jump or 0.0)

    @property
    def mean_gap(self) -> float:
        """The mean gap at the end; 0 where no pair has it."""
        return 0.0 if self.final_gap is None else self.final_gap.mean


@dataclass(frozen=True, kw_only=True)
class SeamComparison:
    """Every pair of arms of one workload at one seam; `facts` are those of the workload."""

    title: str
    facts: Mapping[str, Scalar]
    step: int
    """The step whose checkpoint was resumed."""
    steps: int | None
    """The length of the runs."""
    margin_pct: float
    loss: float | None
    """Mean training loss of the uninterrupted runs in the first step after the seam: what a jump is a part of."""
    saved_in: tuple[str, ...]
    resumed_in: tuple[str, ...]
    seams: tuple[Seam, ...]
    """Row by row, in the order of `saved_in` and `resumed_in`; pairs that nobody asked for are left out."""
    runs: tuple[RunEntry, ...]
    """The resumed runs; the uninterrupted ones are in their workload."""

    @property
    def names(self) -> tuple[str, ...]:
        """The arms of its runs, in the order of tables."""
        return self.resumed_in

    def of(self, saved_in: str, resumed_in: str) -> Seam | None:
        """Find the runs of a pair of arms."""
        return next((one for one in self.seams if (one.saved_in, one.resumed_in) == (saved_in, resumed_in)), None)

    @property
    def heading(self) -> str:
        """The training, and the step at which its precision changed."""
        length = "" if self.steps is None else f" of {self.steps}"
        return f"{self.title}, from the checkpoint of step {self.step}{length}"

    @property
    def sentence(self) -> str:
        """The largest jump, beside what going on in the same precision does."""
        others = [one for one in self._changes if one.largest_jump is not None]
        if not others:
            return "No jump of the loss was measured between two precisions."
        limit = self.margin_pct / 100 * abs(self.loss or 0.0)
        num_moving = sum(0 < limit <= one.jump_size for one in others)
        moving = f"{num_moving} of {plural(len(others), 'change')} of precision" if num_moving else _NO_CHANGE
        jump = f"{moving} {'move' if num_moving > 1 else 'moves'} the training loss"
        worst = max(others, key=lambda one: one.jump_size)
        if worst.jump_size:
            share = f" ({percent(100 * worst.jump_size / abs(self.loss))})" if self.loss else ""
            size = f"the largest jump is {signed(worst.largest_jump or 0.0, 2)}{share}, from {worst.name}"
            jump += f" by {self.margin_pct:g}% or more: {size}"
        apart = [one for one in others if one.is_apart]
        if apart:
            later = "at the end" if self.steps is None else self._later
            off = f"is more than {self.margin_pct:g}% off after {len(apart)} of {len(others)}"
            most = max(apart, key=lambda one: abs(one.mean_gap))
            jump += f"; {later} the validation loss {off} (most from {most.name}, {signed(most.mean_gap, 2)})"
        return f"{jump}; {self._same_arm}."

    @property
    def explanation(self) -> str:
        """The meaning of a cell of the table."""
        there = "" if self.loss is None else f" (where it is {loss(self.loss)})"
        n = sorted({one.loss_jump.n for one in self.seams if one.loss_jump is not None})
        mean = f"mean over {f'{n[0]} seeds' if len(n) == 1 else 'seeds'}, sd over them"
        return (
            f"Training loss of step {self.step + 1}{there}, minus that of the uninterrupted run in the precision of "
            f"the row: the same batch, the same checkpoint; {'one seed' if n == [1] else mean}"
        )

    @property
    def lines(self) -> list[str]:
        """Lines on all else that a reader of the table must know."""
        alike: dict[str, list[Seam]] = defaultdict(list)
        for one in self.seams:
            for note in one.notes:
                alike[note.cause].append(one)
        for one in self.seams:
            if list(one.statuses) != ["completed"]:
                alike[statuses_text(one.statuses) + ("" if one.error is None else f": {one.error}")].append(one)
        return [*self._finally, *self._skips, *(f"{_names(of)}: {text}" for text, of in alike.items())]

    @property
    def _changes(self) -> list[Seam]:
        return [one for one in self.seams if not one.is_same_arm]

    @property
    def _later(self) -> str:
        return "At the end" if self.steps is None else f"{plural(self.steps - self.step, 'step')} later"

    @property
    def _same_arm(self) -> str:
        same = [one for one in self.seams if one.is_same_arm and one.is_bitwise is not None]
        changed = [one.saved_in for one in same if not one.is_bitwise]
        if not same:
            return "no run went on in the precision it was saved in"
        if not changed:
            return "resumed in the precision it was saved in, every run goes on bitwise"
        return f"even resumed in the precision it was saved in, not every run goes on bitwise ({', '.join(changed)})"

    @property
    def _finally(self) -> Iterator[str]:
        """A line on the gaps that are left at the end."""
        others = [one for one in self._changes if one.final_gap is not None]
        tested = [one for one in others if one.final_position is not None]
        left = [one for one in tested if one.final_position != "inside"]
        within = f"within {self.margin_pct:g}% of the uninterrupted run's"
        if others and not tested:
            worst = max(others, key=lambda one: abs(one.mean_gap))
            n = 0 if worst.final_gap is None else worst.final_gap.n
            gap = f"{signed(worst.mean_gap, 2)} ({worst.name}, n={n})"
            yield f"{self._later} the largest gap of the validation loss is {gap}; a verdict takes {MIN_PAIRS} seeds"
        elif others and not left:
            all_within = f"the validation loss of every resumed run is {within}"
            yield f"{self._later} {all_within}: no gap that counts is left"
        elif others:
            by_position: dict[str, list[str]] = defaultdict(list)
            for one in left:
                by_position[_FINALLY[one.final_position]].append(f"{one.name} ({signed(one.mean_gap, 2)})")
            told = "; ".join(f"{what}: {', '.join(of)}" for what, of in by_position.items())
            closed = f"{len(tested) - len(left)} of {len(tested)} changes"
            yield f"{self._later} the validation loss is {within} for {closed}; {told}"

    @property
    def _skips(self) -> Iterator[str]:
        scaled = [one for one in self.seams if one.skipped_steps is not None]
        skipping = [
            f"{one.name} {one.skipped_steps} in {plural(one.num_runs, 'run')}" for one in scaled if one.skipped_steps
        ]
        if skipping:
            yield f"Steps skipped in the first {NUM_NEAR_STEPS} after the change: {', '.join(skipping)}"
        elif scaled:
            yield f"No scaler skipped any of the first {NUM_NEAR_STEPS} steps after the change"


def _names(of: Sequence[Seam]) -> str:
    """Several pairs of arms, those into one arm together: 'fp32, amp_bf16 to amp_fp16'."""
    into: dict[str, list[str]] = defaultdict(list)
    for one in of:
        into[one.resumed_in].append(one.saved_in)
    both: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for resumed_in, saved_in in into.items():
        both[tuple(saved_in)].append(resumed_in)
    return "; ".join(f"{', '.join(saved)} to {', '.join(resumed)}" for saved, resumed in both.items())


@dataclass(frozen=True)
class _Pair:
    """A resumed run, and the uninterrupted one from whose checkpoint it went on."""

    resumed: Run
    whole: Run
    step: int
    series: AllSeries

    @property
    def loss(self) -> float | None:
        """The uninterrupted run's loss in the first step after the seam."""
        return self._at(self.whole, TRAIN_LOSS, self.step + 1)

    @property
    def loss_jump(self) -> float | None:
        return _difference(self._at(self.resumed, TRAIN_LOSS, self.step + 1), self.loss)

    @property
    def val_loss_jump(self) -> float | None:
        before = self._at(self.whole, VAL_LOSS, self.step)
        return _difference(self._at(self.resumed, SEAM_VAL_LOSS, self.step + 1), before)

    @property
    def final_gap(self) -> float | None:
        return _difference(self.resumed.compared_figure(VAL_LOSS), self.final_loss)

    @property
    def final_loss(self) -> float | None:
        """The uninterrupted run's validation loss at the end."""
        return self.whole.compared_figure(VAL_LOSS)

    @property
    def skipped_steps(self) -> int | None:
        skipped = self._of(self.resumed, SKIPPED_STEPS)
        if skipped is None:
            return None
        near = np.flatnonzero(skipped.steps <= self.step + NUM_NEAR_STEPS)
        if not len(near):
            return None
        before = self._at(self.whole, SKIPPED_STEPS, self.step) or 0  # a scaler of its own begins to count at the seam
        return round(float(skipped.values[near[-1]]) - before)

    def _at(self, run: Run, key: str, step: int) -> float | None:
        series = self._of(run, key)
        if series is None:
            return None
        found = series.values[series.steps == step]
        return float(found[0]) if len(found) and np.isfinite(found[0]) else None

    def _of(self, run: Run, key: str) -> MetricSeries | None:
        return self.series.get(run.directory, {}).get(key)


def compare_seams(
    workload: Workload,
    uninterrupted: Sequence[Run],
    series: AllSeries,
    *,
    baseline: str,
    margin_pct: float,
) -> SeamComparison:
    """Compare the resumed runs of one workload with the uninterrupted ones.

    Args:
        workload: runs that began with a checkpoint at a seam.
        uninterrupted: runs that kept theirs, of this workload and others.
        series: of all of these runs the metrics `SEAM_KEYS`.
        baseline: the arm that comes first.
        margin_pct: gap of the final loss, in percent of the uninterrupted run's, that counts as none.
    """
    step = workload.runs[0].record.identity.seam_step
    assert step is not None, "these runs have a seam"
    whole = {(run.pair_key, run.arm): run for run in uninterrupted if not run.contradictions}
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    pairs: dict[tuple[str, str], list[_Pair]] = defaultdict(list)
    for run in workload.runs:
        arms = _saved_in(run), run.arm
        runs[arms].append(run)
        partner = whole.get((run.pair_key, arms[0]))
        if partner is not None and not run.contradictions:
            pairs[arms].append(_Pair(run, partner, step, series))
    saved_in, resumed_in = (
        tuple(sorted(set(arms), key=lambda arm: arm_rank(arm, baseline))) for arms in zip(*runs, strict=True)
    )
    every = [pair for own in pairs.values() for pair in own]
    losses = {pair.whole.directory: loss for pair in every if (loss := pair.loss) is not None}
    mean = spread(list(losses.values()))
    return SeamComparison(
        title=workload.title,
        facts=workload.facts,
        step=step,
        steps=next((run.record.identity.steps for run in workload.runs if run.record.identity.steps), None),
        margin_pct=margin_pct,
        loss=None if mean is None else mean.mean,
        saved_in=saved_in,
        resumed_in=resumed_in,
        seams=tuple(
            _seam(*arms, runs[arms], pairs[arms], margin_pct)
            for arms in itertools.product(saved_in, resumed_in)
            if arms in runs
        ),
        runs=tuple(run_entry(run) for run in workload.runs),
    )


def _seam(saved_in: str, resumed_in: str, runs: Sequence[Run], pairs: Sequence[_Pair], margin_pct: float) -> Seam:
    compared = [(gap, pair.final_loss) for pair in pairs if (gap := pair.final_gap) is not None]
    gaps, finals = [gap for gap, _ in compared], [loss for _, loss in compared if loss is not None]
    margin = margin_pct / 100 * abs(sum(finals) / len(finals)) if finals else None
    tested = two_one_sided_tests(gaps, margin) if margin and len(gaps) >= MIN_PAIRS else None
    jumps = _known(pair.loss_jump for pair in pairs)
    skipped = _known(pair.skipped_steps for pair in pairs)
    errors = [run.record.error for run in runs if run.record.error and not run.measured]
    return Seam(
        saved_in=saved_in,
        resumed_in=resumed_in,
        num_runs=len(runs),
        statuses=dict(Counter(run.outcome for run in runs)),
        error=first_line(errors[0]) if errors else None,
        loss_jump=spread(jumps),
        largest_jump=max(jumps, key=abs, default=None),
        val_loss_jump=spread(_known(pair.val_loss_jump for pair in pairs)),
        final_gap=spread(gaps),
        final_position=None if tested is None else tested.position,
        margin=margin,
        skipped_steps=sum(skipped) if skipped else None,
        notes=merged(_notes(runs)),
    )


def _known(values: Iterable[_Number | None]) -> list[_Number]:
    return [value for value in values if value is not None]


def _notes(runs: Iterable[Run]) -> Iterator[NotCarriedOver]:
    """The sentences of the first process of each run that found its checkpoint changed by the seam."""
    for run in runs:
        step = run.record.identity.seam_step
        first = next((one for one in run.record.attempts if one.from_step == step), None)
        for text in (first.notes or ()) if first is not None else ():
            yield NotCarriedOver(seeds=(run.seed,), cause=text)


def _saved_in(run: Run) -> str:
    saved_in = run.record.identity.saved_in
    assert saved_in is not None, "this run is uninterrupted"
    return saved_in


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
