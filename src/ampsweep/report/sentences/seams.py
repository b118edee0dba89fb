"""Changes of precision in the middle of a training in words: the jump of the loss, and what became of it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ampsweep.analysis.equivalence import Position
from ampsweep.analysis.seam_comparison import NUM_NEAR_STEPS, Seam, SeamComparison
from ampsweep.analysis.statistics import MIN_PAIRS, Spread
from ampsweep.report.sentences.arm_findings import statuses
from ampsweep.text import first_line, loss, number, percent, plural, signed

HEADING: Final = "Saved in one precision, resumed in another"

_FINALLY: Final[dict[Position, str]] = {
    "above": "still worse by more than that",
    "below": "better by more than that",
    "open": "undecided",
}


def heading(found: SeamComparison) -> str:
    """Name what was trained, and where its precision changed."""
    length = "" if found.steps is None else f" of {found.steps}"
    return f"{found.title}, from the checkpoint of step {found.step}{length}"


def answer(found: SeamComparison) -> str:
    """The largest jump, beside what going on in the same precision does."""
    others = [one for one in found.seams if not one.is_same_arm and one.largest_jump is not None]
    if not others:
        return "No jump of the loss was measured between two precisions."
    limit = found.margin_pct / 100 * abs(found.loss or 0.0)
    num_moving = sum(0 < limit <= _size(one) for one in others)
    moving = f"{num_moving} of {plural(len(others), 'change')} of precision" if num_moving else "No change of precision"
    verb = "move" if num_moving > 1 else "moves"
    worst = max(others, key=_size)
    jump = f"{moving} {verb} the training loss"
    if _size(worst):
        share = f" ({_share(_size(worst), found.loss)})" if found.loss else ""
        size = f"the largest jump is {signed(worst.largest_jump or 0.0, 2)}{share}, from {_name(worst)}"
        jump += f" by {found.margin_pct:g}% or more: {size}"
    return f"{jump}; {_still_apart(found, others)}{_same_arm(found)}."


def _still_apart(found: SeamComparison, others: Sequence[Seam]) -> str:
    """A clause about changes whose gap at the end lies beyond the margin; of fewer than three pairs their mean does."""
    apart = [
        one
        for one in others
        if one.final_position in ("above", "below")
        or (one.final_position is None and one.margin is not None and abs(_mean(one.final_gap)) > one.margin)
    ]
    if not apart:
        return ""
    worst = max(apart, key=lambda one: abs(_mean(one.final_gap)))
    later = "at the end" if found.steps is None else _later(found)
    off = f"is more than {found.margin_pct:g}% off after {len(apart)} of {len(others)}"
    return f"{later} the validation loss {off} (most from {_name(worst)}, {_signed(worst.final_gap)}); "


def _later(found: SeamComparison) -> str:
    return "At the end" if found.steps is None else f"{plural(found.steps - found.step, 'step')} later"


def seam_lines(found: SeamComparison) -> list[str]:
    """Say what else a reader of the table must know, a line each."""
    return [*_finally(found), *_skips(found), *_notes(found), *_without_figures(found)]


def position(one: Seam) -> str:
    """Say whether the gap at the end counts as none."""
    if one.final_gap is None:
        return "-"
    if one.final_position is None:
        return "exact" if one.final_gap.mean == 0 else f"{MIN_PAIRS} seeds are needed"
    return {"inside": "closed", "above": "worse", "below": "better", "open": "undecided"}[one.final_position]


def _same_arm(found: SeamComparison) -> str:
    same = [one for one in found.seams if one.is_same_arm and one.is_bitwise is not None]
    changed = [one for one in same if not one.is_bitwise]
    if not same:
        return "no run went on in the precision it was saved in"
    if not changed:
        return "resumed in the precision it was saved in, every run goes on bitwise"
    names = ", ".join(one.saved_in for one in changed)
    return f"even resumed in the precision it was saved in, not every run goes on bitwise ({names})"


def _finally(found: SeamComparison) -> Iterator[str]:
    """Tell whether the gaps have closed at the end."""
    others = [one for one in found.seams if not one.is_same_arm and one.final_gap is not None]
    if not others:
        return
    later = _later(found)
    tested = [one for one in others if one.final_position is not None]
    if not tested:
        worst = max(others, key=lambda one: abs(_mean(one.final_gap)))
        gap = f"{_signed(worst.final_gap)} ({_name(worst)}, {_n(worst.final_gap)})"
        yield f"{later} the largest gap of the validation loss is {gap}; a verdict takes {MIN_PAIRS} seeds"
        return
    within = f"within {found.margin_pct:g}% of the uninterrupted run's"
    left = [one for one in tested if one.final_position != "inside"]
    if not left:
        yield f"{later} the validation loss of every resumed run is {within}: no gap that counts is left"
        return
    by_position: dict[str, list[Seam]] = defaultdict(list)
    for one in left:
        by_position[_FINALLY[one.final_position or "open"]].append(one)
    told = "; ".join(f"{what}: {_with_gaps(of)}" for what, of in by_position.items())
    yield f"{later} the validation loss is {within} for {len(tested) - len(left)} of {len(tested)} changes; {told}"


def _skips(found: SeamComparison) -> Iterator[str]:
    scaled = [one for one in found.seams if one.skipped_steps is not None]
    skipping = [one for one in scaled if one.skipped_steps]
    if skipping:
        told = ", ".join(f"{_name(one)} {one.skipped_steps} in {plural(one.num_runs, 'run')}" for one in skipping)
        yield f"Steps skipped in the first {NUM_NEAR_STEPS} after the change: {told}"
    elif scaled:
        yield f"No scaler skipped any of the first {NUM_NEAR_STEPS} steps after the change"


def _notes(found: SeamComparison) -> Iterator[str]:
    alike: dict[str, list[Seam]] = defaultdict(list)
    for one in found.seams:
        for note in one.notes:
            alike[note.text].append(one)
    for text, of in alike.items():
        yield f"{_names(of)}: {text}"


def _without_figures(found: SeamComparison) -> Iterator[str]:
    alike: dict[str, list[Seam]] = defaultdict(list)
    for one in found.seams:
        if list(one.statuses) != ["completed"]:
            alike[statuses(one.statuses) + ("" if one.error is None else f": {first_line(one.error)}")].append(one)
    for text, of in alike.items():
        yield f"{_names(of)}: {text}"


def _with_gaps(of: Iterable[Seam]) -> str:
    return ", ".join(f"{_name(one)} ({_signed(one.final_gap)})" for one in of)


def _name(one: Seam) -> str:
    return f"{one.saved_in} to {one.resumed_in}"


def _names(of: Sequence[Seam]) -> str:
    """Name several pairs of arms, those into one arm together: 'fp32, amp_bf16 to amp_fp16'."""
    into: dict[str, list[str]] = defaultdict(list)
    for one in of:
        into[one.resumed_in].append(one.saved_in)
    both: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for resumed_in, saved_in in into.items():
        both[tuple(saved_in)].append(resumed_in)
    return "; ".join(f"{', '.join(saved)} to {', '.join(resumed)}" for saved, resumed in both.items())


def _size(one: Seam) -> float:
    return abs(one.largest_jump or 0.0)


def _mean(of: Spread | None) -> float:
    return 0.0 if of is None else of.mean


def _signed(of: Spread | None) -> str:
    return signed(_mean(of), 2)


def _share(jump: float, whole: float) -> str:
    return percent(100 * abs(jump / whole))


def _n(of: Spread | None) -> str:
    return f"n={0 if of is None else of.n}"


def explanation(found: SeamComparison) -> str:
    """Say what a cell of the table is."""
    there = "" if found.loss is None else f" (where it is {loss(found.loss)})"
    n = {one.loss_jump.n for one in found.seams if one.loss_jump is not None}
    seeds = "one seed" if n == {1} else f"mean over {plural(n.pop(), 'seed') if len(n) == 1 else 'seeds'}, sd over them"
    return (
        f"Training loss of step {found.step + 1}{there}, minus that of the uninterrupted run in the precision of the "
        f"row: the same batch, the same checkpoint; {seeds}"
    )


def spread(of: Spread | None) -> tuple[str, str]:
    """A difference and its standard deviation over seeds: ('+0.00028', 'sd 0.00012')."""
    if of is None:
        return "-", ""
    if of.mean == 0 and not of.sd:
        return "0", ""
    return signed(of.mean, 2), "" if of.sd is None else f"sd {number(of.sd, 2)}"
