"""A traced training step as a timeline: when each allocation was made and freed, and how large it was."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ampsweep.observe.ledger import Integers, Ledger, Lives
from ampsweep.record.parts import UnvouchedOperator


@dataclass(frozen=True)
class Timeline(Lives):
    """The lives of a step's allocations, and two of its moments."""

    end_of_forward: int
    optimizer_step: int
    """The moments at which the forward pass had ended and at which the optimizer began."""
    unvouched: tuple[UnvouchedOperator, ...] = ()
    """Operators of the step that may allocate otherwise than here."""


def same_course(one: Timeline, other: Timeline) -> bool:
    """Return True if two steps allocate and free the same things in the same order, whatever their sizes."""
    mine: list[Any] = [one.born, one.died, one.categories]
    return all(map(np.array_equal, mine, [other.born, other.died, other.categories]))


def timeline(ledger: Ledger, *, optimizer_step: int, unvouched: tuple[UnvouchedOperator, ...] = ()) -> Timeline:
    """The timeline of a traced step."""
    lives = ledger.lives()
    died = _in_order(lives.born, lives.died)
    return Timeline(lives.sizes, lives.born, died, lives.categories, ledger.marked_moment, optimizer_step, unvouched)


def _in_order(born: Integers, died: Integers) -> Integers:
    """Put the deaths between two births in order of index: autocast's cache, a hash table, frees in any order."""
    births_before = np.searchsorted(np.sort(born), died)
    ordered = np.empty_like(died)
    ordered[np.lexsort((np.arange(len(died)), births_before))] = np.sort(died)
    return ordered
