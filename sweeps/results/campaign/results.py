"""The findings of a campaign, read from the files of its calls: each experiment as `ampsweep report` compares it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.runs import Run
from ampsweep.analysis.statistics import Estimate, known_median, mean_ratio
from ampsweep.records import RunRecord
from ampsweep.report.compare import Compared, compare_directories
from campaign.call import RUNS, Call, Entry

BASELINE: Final = "fp32"
_OUTCOMES: Final = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")


@dataclass(frozen=True)
class ByHand:
    """One arm of the loop by hand, with one process per seed."""

    rows: Sequence[Mapping[str, Any]]
    """The rows that by_hand.py printed."""
    against: Estimate | None
    """The suite's step time over that of the loop by hand: geometric mean over pairs of one seed."""

    def median(self, key: str) -> float | None:
        """Median of `step_ms`, `wall_ms` or `peak_bytes`; None if it was not measured."""
        return known_median(row.get(key) for row in self.rows)


@dataclass(frozen=True)
class Arm:
    """The runs of one arm in one workload, with their figures."""

    figures: ArmComparison
    runs: Sequence[Run]
    by_hand: ByHand | None

    @property
    def name(self) -> str:
        return self.figures.arm

    @property
    def undisturbed(self) -> list[Run]:
        """Runs whose speed counts."""
        return [run for run in self.runs if run.measured and run.contamination is None]

    def median(self, key: str) -> float | None:
        """Median of a metric over the runs whose speed counts; None if none of them measured it."""
        return known_median(run.figure(key) for run in self.undisturbed)

    @property
    def least_ms(self) -> float | None:
        """The least time of a step; None if its device is not in the table of GPUs."""
        return known_median(of.least_ms for run in self.runs if (of := run.record.prediction) is not None)

    @property
    def share_pct(self) -> float | None:
        """The least time of a step, in percent of the measured one."""
        step_ms = self.figures.step_ms
        return None if self.least_ms is None or step_ms is None else 100 * self.least_ms / step_ms

    @property
    def wall_ms(self) -> float | None:
        """Median over runs of the time of a step by the wall: all time after warm-up over its steps."""
        found = []
        for run in self.undisturbed:
            per_sec, samples = run.figure("perf/samples_per_sec"), run.record.identity.batch_size
            if per_sec is not None and samples is not None:
                found.append(1e3 * samples / per_sec)
        return known_median(found)

    @property
    def peak_over_by_hand(self) -> float | None:
        """Its peak memory over that by hand."""
        return self._over_by_hand(self.figures.peak_memory_bytes, "peak_bytes")

    @property
    def wall_over_by_hand(self) -> float | None:
        """Its step by the wall over that by hand."""
        return self._over_by_hand(self.wall_ms, "wall_ms")

    def _over_by_hand(self, ours: float | None, key: str) -> float | None:
        theirs = None if self.by_hand is None else self.by_hand.median(key)
        return None if ours is None or theirs is None else ours / theirs


@dataclass(frozen=True)
class Workload:
    """One workload of an experiment."""

    comparison: WorkloadComparison
    arms: Sequence[Arm]

    @property
    def record(self) -> RunRecord:
        """The record of one of its runs, for the facts that the arms have in common."""
        return self.arms[0].runs[0].record


@dataclass(frozen=True)
class Results:
    """The calls of a campaign and its experiments by name."""

    calls: Sequence[Call]
    compared: Mapping[str, Compared]

    @staticmethod
    def load(packed: Sequence[Path], directory: Path) -> "Results":
        """Unpack the files of the calls below a directory, and compare their runs.

        Raises:
            OSError, ValueError, tarfile.TarError: a file is missing or damaged, or two are of one call.
        """
        places = [directory / str(number) for number in range(len(packed))]
        calls = [Call.unpack(path, place) for path, place in zip(packed, places, strict=True)]
        if len({call.number for call in calls}) < len(calls):
            raise ValueError("two files are of the same call; give one of each")
        found: dict[str, list[Path]] = {}
        for place in places:
            for path in sorted((place / RUNS).glob("*")):
                found.setdefault(path.name, []).append(path)
        return Results(calls, {name: compare_directories(paths) for name, paths in found.items()})

    @property
    def entries(self) -> dict[str, Entry]:
        """What became of each command of the calls."""
        return {text: entry for call in self.calls for text, entry in call.entries.items()}

    @property
    def by_hand(self) -> list[dict[str, Any]]:
        """The rows that by_hand.py printed."""
        lines = "".join(entry.printed for text, entry in self.entries.items() if "by_hand.py" in text).splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    @property
    def tests(self) -> list[str]:
        """pytest's summary: a line a test, the last one with the counts; empty if it did not come to its end."""
        lines = "".join(entry.printed for text, entry in self.entries.items() if text.startswith("pytest")).splitlines()
        return [line for line in lines if line.startswith(_OUTCOMES)] + lines[-1:]

    @property
    def records(self) -> list[RunRecord]:
        """The records of all runs."""
        return [record for compared in self.compared.values() for _, record in compared.records]

    def workloads(self, experiment: str) -> list[Workload]:
        """The workloads of an experiment; empty if it was not measured."""
        compared = self.compared.get(experiment)
        if compared is None:
            return []
        records = {path.as_posix(): Run(path, record) for path, record in compared.records}
        return [
            Workload(one, [self._arm(arm, [records[run.directory] for run in one.runs]) for arm in one.arms])
            for one in compared.comparison.workloads
        ]

    def _arm(self, figures: ArmComparison, of_workload: Sequence[Run]) -> Arm:
        runs = [run for run in of_workload if run.arm == figures.arm]
        arm = Arm(figures, runs, None)
        return Arm(figures, runs, _by_hand(arm, [row for row in self.by_hand if _is_of(row, runs[0].record)]))


def num_warmup_steps(record: RunRecord) -> int:
    """Steps left out of the run's figures."""
    if record.attempts and (counted := record.attempts[-1].warmup_steps) is not None:
        return counted
    warmup_steps: int = record.config["trainer"]["warmup_steps"]
    return min(warmup_steps, (record.identity.steps or 0) // 2)


def _is_of(row: Mapping[str, Any], record: RunRecord) -> bool:
    """Tell whether this row of a loop by hand belongs to the arm of the record."""
    identity = record.identity
    facts = (identity.experiment, record.arm, identity.compile, record.config["model"].get("vocab_size"))
    return facts == tuple(row[key] for key in ("experiment", "arm", "compile", "vocab_size"))


def _by_hand(arm: Arm, rows: Sequence[Mapping[str, Any]]) -> ByHand | None:
    by_seed = {row["seed"]: row["step_ms"] for row in rows}
    pairs = [
        (step_ms, by_seed[run.seed])
        for run in arm.undisturbed
        if run.seed in by_seed and (step_ms := run.figure("perf/step_ms")) is not None
    ]
    return ByHand(rows, mean_ratio(pairs) if pairs else None) if rows else None
