"""The runs of a multirun with `report.decide=true`: the next is the one that decides most a minute.

Every arm is paired with the baseline seed by seed. It is open until its parity, speed and memory are decided, or it is
refused or dominated. All open arms get three pairs, seed by seed, so that a drift of the machine falls on all of them
alike; then that arm goes on whose missing pairs take the least time.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ampsweep.analysis.candidates import Candidate
from ampsweep.analysis.comparison import Comparison
from ampsweep.analysis.recommendation import MIN_DIFFERENCE
from ampsweep.analysis.sequential import is_settled
from ampsweep.analysis.statistics import MIN_PAIRS
from ampsweep.config.compose import Point
from ampsweep.config.identity import config_hash
from ampsweep.run.directories import finished_hashes
from ampsweep.sweep.seeded_arms import SeededArm
from ampsweep.text import duration, listed, plural

_MAX_MEMORY_DOUBT: Final = 2.0  # percent of the baseline's peak between the ends of a decided interval


class SequentialRuns:
    """Iterates over the points to train until every arm is decided, or the budget does not suffice for another pair."""

    def __init__(
        self,
        arms: Sequence[SeededArm],
        directory: Path,
        compared: Callable[[], Comparison],
        began_s: float,
        say: Callable[[str], None],
    ) -> None:
        """
        Args:
            directory: of the multirun.
            compared: compares all runs so far.
            began_s: the monotonic time from which the budget counts.
            say: gets a sentence on how it ended.
        """
        self._arms, self._directory, self._compared = arms, directory, compared
        self._began_s, self._say = began_s, say
        self._report = arms[0].first.report
        self._baselines = {of.workload: of for of in arms if of.is_baseline}
        self._seconds = {of: of.seconds for of in arms}
        self._trained: set[str] = set()
        self._timed: set[SeededArm] = set()

    def __iter__(self) -> Iterator[Point]:
        while (chosen := self._choose()) is not None:
            arm, point = chosen
            began_s = time.monotonic()
            self._trained.add(config_hash(point.config))
            yield point
            taken_s = time.monotonic() - began_s
            # The shortest: a run may also have waited for others on its device.
            self._seconds[arm] = min(taken_s, self._seconds[arm]) if arm in self._timed else taken_s
            self._timed.add(arm)

    def _choose(self) -> tuple[SeededArm, Point] | None:
        done = finished_hashes(self._directory) | self._trained
        missing = {arm: pairs for arm, pairs in self._missing_pairs(done).items() if pairs}
        left_s = 60 * self._report.budget_minutes - (time.monotonic() - self._began_s)
        has_pair = any(self._num_pairs_run(arm, done) for arm in self._arms if not arm.is_baseline)
        options = []
        for arm, num_missing in missing.items():
            runs = self._runs_of_next_pair(arm, done)
            pair_s = sum(self._seconds[of] for of, _ in runs)
            num_pairs = self._num_pairs_run(arm, done)
            if runs and (pair_s <= left_s or not has_pair):  # the first pair begins in any case
                is_later = num_pairs >= MIN_PAIRS
                options.append((is_later, num_missing * pair_s if is_later else num_pairs, runs[0]))
        if options:
            return min(options, key=lambda option: option[:2])[2]
        self._say(self._ending(missing, done))
        return None

    def _ending(self, missing: Iterable[SeededArm], done: set[str]) -> str:
        took = f"{plural(len(self._trained), 'run')} in {duration(time.monotonic() - self._began_s)}"
        if not missing:
            return f"{took}: further ones would decide no more"
        has_seeds = any(self._runs_of_next_pair(arm, done) for arm in missing)
        key = "budget_minutes" if has_seeds else "max_seeds"
        open_arms = listed(dict.fromkeys(arm.arm for arm in missing))
        return f"report.{key}={getattr(self._report, key):g} is reached after {took}; not decided: {open_arms}"

    def _runs_of_next_pair(self, arm: SeededArm, done: set[str]) -> list[tuple[SeededArm, Point]]:
        """The runs that the first incomplete pair lacks, the baseline's first; none if every seed is done."""
        baseline = self._baselines[arm.workload]
        for points in zip(baseline.points, arm.points, strict=True):
            pair = zip((baseline, arm), points, strict=True)
            if lacking := [(of, point) for of, point in pair if config_hash(point.config) not in done]:
                return lacking
        return []

    def _num_pairs_run(self, arm: SeededArm, done: set[str]) -> int:
        both = zip(self._baselines[arm.workload].points, arm.points, strict=True)
        return sum(done.issuperset(config_hash(point.config) for point in pair) for pair in both)

    def _missing_pairs(self, done: set[str]) -> dict[SeededArm, int]:
        """How many more pairs each arm needs, probably; before its first run three."""
        found = {arm: MIN_PAIRS for arm in self._arms if not arm.is_baseline}
        for workload in self._compared().workloads if done else ():
            here = {entry.run.record.config_hash for entry in workload.runs}
            candidates = {candidate.arm: candidate for candidate in workload.verdict.arms}
            for arm in found:
                candidate = candidates.get(arm.arm)
                if candidate is None or here.isdisjoint(config_hash(point.config) for point in arm.points):
                    continue
                failed = self._num_pairs_run(arm, done) - candidate.judgements.figures.num_completed_pairs
                is_over = failed >= MIN_PAIRS or is_dominated(candidate, candidates.values())
                pairs = missing_pairs(candidate, self._report.max_seeds, for_speed=not self._is_busy(candidate))
                found[arm] = 0 if is_over else pairs
        return found

    def _is_busy(self, candidate: Candidate) -> bool:
        """Return True if most of the arm's runs by this command were disturbed: more of them would be, too."""
        runs = {run.directory: run for pair in candidate.pairs for run in (*pair.baseline_runs, *pair.arm_runs)}
        own = [run for run in runs.values() if run.record.config_hash in self._trained]
        num_disturbed = sum(run.contamination is not None for run in own)
        return num_disturbed >= MIN_PAIRS and 2 * num_disturbed > len(own)


def missing_pairs(candidate: Candidate, max_pairs: int, *, for_speed: bool = True) -> int:
    """How many more pairs will probably decide the arm's parity, memory and, `for_speed`, speed; 0 if they are decided,
    or it is refused."""
    figures = candidate.judgements.figures
    num_pairs = figures.num_completed_pairs
    if candidate.refusal is not None:
        return 0
    if num_pairs < MIN_PAIRS:
        return MIN_PAIRS - num_pairs
    left = max_pairs - num_pairs  # after the last planned pair parity stays as it is
    unsettled = [parity for parity in candidate.judgements.parities if parity.verdict == "inconclusive"]
    further = [min(left, parity.further_seeds or left) for parity in unsettled if left > 0]
    speedup, saved = figures.speedup, figures.memory_saved_pct
    if for_speed and speedup is not None and not is_settled(speedup):
        further.append(max(1, MIN_PAIRS - speedup.n))
    elif for_speed and speedup is None and figures.disturbed_speedup is not None:
        further.append(MIN_PAIRS)
    if saved is not None and saved.interval is not None and saved.interval[1] - saved.interval[0] > _MAX_MEMORY_DOUBT:
        further.append(1)
    return max(further, default=0)


def is_dominated(arm: Candidate, others: Iterable[Candidate]) -> bool:
    """Return True if the baseline, or an arm that learns no worse, is surely faster by 2% and needs no more memory."""
    figures = arm.judgements.figures
    speedup, peak = figures.speedup, figures.peak_memory_bytes
    if speedup is None or speedup.interval is None or peak is None:
        return False
    fastest_s = speedup.interval[1] * (1 + MIN_DIFFERENCE)
    if fastest_s < 1 and figures.memory_saved_bytes is not None and figures.memory_saved_bytes.value <= 0:
        return True
    rivals = [of.judgements.figures for of in others if of is not arm and of.refusal is None and not of.missing]
    return any(
        of.speedup is not None
        and of.speedup.interval is not None
        and of.speedup.interval[0] > fastest_s
        and of.peak_memory_bytes is not None
        and of.peak_memory_bytes <= peak
        for of in rivals
    )
