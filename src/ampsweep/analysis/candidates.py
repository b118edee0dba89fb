"""An arm as a candidate for being trained in: whether it is refused, still open, or may be chosen."""

from dataclasses import dataclass
from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.equivalence import MAX_FURTHER_PAIRS
from ampsweep.analysis.judgements import Judgements
from ampsweep.analysis.pairs import Pair
from ampsweep.analysis.parity import Parity
from ampsweep.analysis.statistics import MIN_PAIRS, Estimate
from ampsweep.text import plural

MAX_SPEED_DOUBT: Final = 1.1
"""A speed that is not told from the baseline's must at least be known to be within this factor of it."""


@dataclass(frozen=True, kw_only=True)
class Open:
    """Why an arm cannot be judged yet, and what would change that."""

    reason: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An arm other than the baseline, with all that a recommendation looks at."""

    figures: ArmComparison
    judgements: Judgements
    parities: tuple[Parity, ...]
    pairs: tuple[Pair, ...]
    refusal: str | None
    withheld: str | None
    """Why it has fewer than three completed pairs; None for one that has them."""

    @property
    def arm(self) -> str:
        return self.figures.arm

    @property
    def speed_is_known(self) -> bool:
        """Whether its speed is told from the baseline's, or known to be about the same."""
        speedup = self.figures.speedup
        return speedup is not None and _is_known(speedup)

    @property
    def open_question(self) -> Open | None:
        """The first thing that is missing to judge it by."""
        return self._pairs_missing() or self._speed_missing() or self._parity_missing()

    def _pairs_missing(self) -> Open | None:
        if self.withheld is None:
            return None
        if "cut short" in self.figures.statuses:
            what = f"let {self.arm} take all of its steps (fewer trainer.steps, or more trainer.max_seconds)"
        else:
            missing = MIN_PAIRS - self.figures.num_completed_pairs
            what = f"complete {plural(missing, 'more pair')} of {self.arm} with the baseline"
        return Open(reason=self.withheld, what=what)

    def _speed_missing(self) -> Open | None:
        if self.speed_is_known:
            return None
        judged = self.judgements
        reason = f"its speed is not known well enough ({judged.speed_text})"
        return Open(reason=reason, what=f"time {self.arm} again with more seeds, on an idle machine")

    def _parity_missing(self) -> Open | None:
        if self.judgements.parity == "not measured":
            what = "use data with a validation part, so that there is a final loss to compare"
            return Open(reason="no validation loss was recorded", what=what)
        unsettled = [one for one in self.parities if not one.not_worse]
        if not unsettled:
            return None
        reason = "; ".join(f"its {one.name} may be worse by more than the margin ({one.text})" for one in unsettled)
        needed = [one.further_seeds for one in unsettled]
        known = [seeds for seeds in needed if seeds is not None]
        if len(known) == len(needed):
            return Open(
                reason=reason, what=f"run about {plural(max(known), 'more seed')} of {self.arm} and the baseline"
            )
        what = f"train longer, or for the next runs accept a wider report.margin_pct than {unsettled[0].margin_pct:g}"
        return Open(reason=reason, what=f"{what} (more than {MAX_FURTHER_PAIRS} more seeds would be needed)")


def _is_known(speedup: Estimate) -> bool:
    if speedup.exact or speedup.resolves(1.0):
        return True
    ends = speedup.interval
    return ends is not None and ends[0] >= 1 / MAX_SPEED_DOUBT and ends[1] <= MAX_SPEED_DOUBT
