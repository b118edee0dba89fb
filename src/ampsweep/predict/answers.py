"""Answers drawn from the predictions of a workload, and the sentences that tell them."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.predict.memory_by_batch_size import LargestBatch
from ampsweep.record.parts import Doubt

_UNLESS: Final = ", unless what is named below takes more than predicted"


@dataclass(frozen=True)
class FewestRanks:
    """The smallest number of ranks on which each has enough memory."""

    world_size: int | None
    """None where no number that was looked at is enough."""
    least: int
    """The smallest number that was looked at."""


@dataclass(frozen=True)
class ArmAnswer:
    """The findings on one arm."""

    arm: str
    largest: LargestBatch | None = None
    """The largest batch that fits; None if it was not asked for."""
    against_baseline: Literal["baseline", "same", "unknown", "saves", "takes_more"] = "unknown"
    """`same`: at every batch size; `saves`: from some batch size on; `takes_more`: it never takes less."""
    saves_from: int | None = None
    """The batch size from which on it saves."""
    fewest: FewestRanks | None = None
    """The smallest number of ranks; None if it was not asked for, or there is one process."""


def sentences(
    answers: Sequence[ArmAnswer], baseline: str | None, memory_gib: float | None, doubts: Set[Doubt] = frozenset()
) -> Iterator[str]:
    """The answers in plain English; `baseline` is None where there is none to compare with.

    Where there are `doubts` about operators they hold on a condition, which they name.

    >>> fp32 = ArmAnswer("fp32", LargestBatch(11), "baseline")
    >>> amp = ArmAnswer("amp_bf16", LargestBatch(19), "saves", saves_from=3)
    >>> list(sentences([fp32, amp], "fp32", 16.0))
    ['On 16 GiB: fp32 up to batch 11, amp_bf16 up to 19.', 'amp_bf16 saves memory from batch 3 on.']
    """
    if ranks := [answer for answer in answers if answer.fewest is not None]:
        yield f"With {memory_gib:g} GiB on each GPU{_UNLESS if doubts else ''}: {', '.join(_numbers(ranks))}."
        return
    if memory_gib is not None and any(answer.largest is not None for answer in answers):
        yield f"On {memory_gib:g} GiB{_UNLESS if doubts else ''}: {', '.join(_fits(answers))}."
    if baseline is None:
        return
    unless = _UNLESS if doubts - {"workspace"} else ""
    for batch_size in sorted({answer.saves_from for answer in answers if answer.saves_from is not None}):
        arms = [answer.arm for answer in answers if answer.saves_from == batch_size]
        yield f"{_listed(arms)} {_verb('save', arms)} memory from batch {batch_size} on{unless}."
    if same := [answer.arm for answer in answers if answer.against_baseline == "same"]:
        yield f"{_listed(same)} {_verb('take', same)} the same memory as {baseline}{unless}."
    if more := [answer.arm for answer in answers if answer.against_baseline == "takes_more"]:
        yield f"{_listed(more)} {_verb('take', more)} as much memory as {baseline} or more, at any batch size{unless}."


def _fits(answers: Sequence[ArmAnswer]) -> Iterator[str]:
    said = False
    for answer in answers:
        if answer.largest is None:
            continue
        size = answer.largest.batch_size
        if size == 0:
            yield f"{answer.arm} not even one item"
        elif answer.largest.is_all_the_data:
            yield f"{answer.arm} every batch the data has (up to {size})"
        elif answer.largest.ended_search:
            yield f"{answer.arm} beyond batch {size}"
        else:
            yield f"{answer.arm} up to {size}" if said else f"{answer.arm} up to batch {size}"
            said = True


def _numbers(answers: Sequence[ArmAnswer]) -> Iterator[str]:
    for answer in answers:
        fewest = answer.fewest
        assert fewest is not None
        if fewest.world_size is None:
            yield f"{answer.arm} on no number of them"
        else:
            or_fewer = " (fewer were not looked at)" if fewest.world_size == fewest.least else ""
            yield f"{answer.arm} from {fewest.world_size} on{or_fewer}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _verb(verb: str, subjects: Sequence[str]) -> str:
    return verb if len(subjects) > 1 else f"{verb}s"
