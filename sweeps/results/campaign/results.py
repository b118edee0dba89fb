"""What a campaign found, read from its packed files."""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import arm_rank, compare
from ampsweep.analysis.runs import Run
from ampsweep.analysis.searches import SearchComparison
from ampsweep.analysis.statistics import Estimate, mean_ratio
from ampsweep.record import RunRecord, find_records
from campaign.ledger import Ledger, read_by_hand
from campaign.packing import restore
from campaign.roofline import Bound, bound

BASELINE: Final = "fp32"
_MARGIN_PCT: Final = 1.0

Runs = Sequence[tuple[Path, RunRecord]]


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm in one workload and what they came to."""

    figures: ArmComparison
    runs: tuple[Run, ...]

    @property
    def arm(self) -> str:
        return self.figures.arm

    @property
    def n(self) -> int:
        """Runs whose speed counts."""
        return sum(run.measured and run.contamination is None for run in self.runs)

    def median(self, key: str) -> float | None:
        """Of a metric, over the runs whose speed counts; None where none of them measured it."""
        values = [
            value
            for run in self.runs
            if run.measured and run.contamination is None and (value := run.figure(key)) is not None
        ]
        return statistics.median(values) if values else None

    @cached_property
    def bound(self) -> Bound | None:
        """The least time of a step."""
        return next((found for run in self.runs if (found := bound(run.record)) is not None), None)

    @property
    def share_pct(self) -> float | None:
        """The least time of a step, in percent of the measured one."""
        if self.bound is None or self.figures.step_ms is None:
            return None
        return 100 * self.bound.step_ms / self.figures.step_ms

    @property
    def wall_ms(self) -> float | None:
        """Median over runs of the time of a step by the wall: all time after warm-up over its steps."""
        found = []
        for run in self.runs:
            window_s = (run.record.contamination.figures or {}).get("window_s")
            steps = run.record.identity.steps
            if run.finished and run.contamination is None and window_s is not None and steps is not None:
                found.append(1e3 * window_s / (steps - num_warmup_steps(run.record)))
        return statistics.median(found) if found else None


@dataclass(frozen=True)
class ByHand:
    """One arm by hand, medians over its processes."""

    n: int
    step_ms: float
    wall_ms: float
    peak_bytes: float | None
    tokens_per_sec: float | None
    against: Estimate | None
    """The suite's step time over that by hand: geometric mean over pairs of one seed."""


@dataclass(frozen=True)
class Results:
    """Everything packed."""

    ledger: Ledger
    by_hand: Sequence[dict[str, Any]]
    records: dict[str, list[tuple[Path, RunRecord]]]
    """By experiment."""

    @staticmethod
    def load(packed: Path) -> "Results":
        """Read the packed files.

        Raises:
            ValueError: there is no campaign in `packed`, or a file is damaged.
        """
        ledger = Ledger.read(packed)
        if ledger is None:
            raise ValueError(f"{packed} holds no campaign.json")
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary).resolve()
            restore(packed, directory)
            runs = directory / "runs"
            records: dict[str, list[tuple[Path, RunRecord]]] = {}
            for path, record in find_records(runs).records:
                place = path.relative_to(runs)
                records.setdefault(place.parts[0], []).append((place, record))
        return Results(ledger, read_by_hand(packed), records)

    @property
    def any_record(self) -> RunRecord | None:
        """One of a run that trained: it says where all this took place."""
        every = (record for runs in self.records.values() for _, record in runs)
        return next((record for record in every if record.status == "completed"), None)

    def of(self, experiment: str, **facts: object) -> Runs:
        """The runs of an experiment that agree with these facts of their identity."""
        return [
            (path, record)
            for path, record in self.records.get(experiment, ())
            if all(getattr(record.identity, key) == value for key, value in facts.items())
        ]

    def hand(self, experiment: str, arm: str, suite: ArmRuns | None = None, **settings: object) -> ByHand | None:
        """What was measured by hand for an arm with these options; None: nothing was.

        Args:
            suite: the suite's runs of the same, to compare with.
        """
        rows = [
            row
            for row in self.by_hand
            if (row["experiment"], row["arm"]) == (experiment, arm)
            and all(row["settings"].get(key) == value for key, value in settings.items())
        ]
        if not rows:
            return None

        def median(key: str) -> float | None:
            values = [row[key] for row in rows if key in row]
            return statistics.median(values) if values else None

        step_ms, wall_ms = median("step_ms"), median("wall_ms")
        assert step_ms is not None
        assert wall_ms is not None
        against = None if suite is None else _against(suite, rows)
        return ByHand(len(rows), step_ms, wall_ms, median("peak_bytes"), median("tokens_per_sec"), against)


def num_warmup_steps(record: RunRecord) -> int:
    """Steps left out of the run's figures: at most half of a short run."""
    warmup_steps: int = record.config["trainer"]["warmup_steps"]
    return min(warmup_steps, (record.identity.steps or 0) // 2)


def arms_of(runs: Runs) -> list[ArmRuns]:
    """The arms of one workload, each against fp32; empty without runs."""
    workloads = compare(runs, baseline=BASELINE, margin_pct=_MARGIN_PCT).workloads
    assert len(workloads) < 2, [workload.title for workload in workloads]
    every = [Run(path, record) for path, record in runs]
    return [
        ArmRuns(arm, tuple(run for run in every if run.arm == arm.arm))
        for workload in workloads
        for arm in sorted(workload.arms, key=lambda one: arm_rank(one.arm, BASELINE))
    ]


def searches_of(runs: Runs) -> Sequence[SearchComparison]:
    """The searches for the largest batch, by memory limit."""
    limits = {record.config["trainer"]["memory_limit_gib"] for _, record in runs}
    found: list[SearchComparison] = []
    for limit in sorted(limits, key=lambda one: (one is not None, one or 0)):
        of_limit = [(path, record) for path, record in runs if record.config["trainer"]["memory_limit_gib"] == limit]
        found += compare(of_limit, baseline=BASELINE, margin_pct=_MARGIN_PCT).searches
    return found


def _against(suite: ArmRuns, rows: Sequence[dict[str, Any]]) -> Estimate | None:
    by_seed = {row["settings"]["seed"]: row["step_ms"] for row in rows}
    pairs = [
        (step_ms, by_seed[run.seed])
        for run in suite.runs
        if run.measured and run.contamination is None and run.seed in by_seed
        if (step_ms := run.figure("perf/step_ms")) is not None
    ]
    return mean_ratio(pairs) if pairs else None
