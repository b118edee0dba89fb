"""Comparison of the largest batch that trains in each arm, and of the throughput with it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.figure_keys import PEAK_MEMORY
from ampsweep.analysis.pairing import figures_of_runs
from ampsweep.analysis.run_findings import NotCompleted, RunEntry, merged, run_entry, statuses_text
from ampsweep.analysis.runs import LARGEST_FIGURE, Run, Scalar
from ampsweep.analysis.statistics import Estimate, known_median, ratio_between
from ampsweep.analysis.step_limits import StepLimit, limits_text, step_limits
from ampsweep.analysis.workloads import Workload
from ampsweep.finding import Finding
from ampsweep.records.batch_search import BatchSearch, PredictedBatch, Probe
from ampsweep.text import GIB, first_line, not_vouched_for, num_bytes, ratio

SAMPLES_PER_SEC: Final = "perf/samples_per_sec"

Bound = Literal["memory", "refused", "limit"]  # of a batch: memory, data or a model that refuse it, `max_batch.limit`


class LimitedThroughput(Finding):
    limits: tuple[StepLimit, ...]

    @property
    def sentence(self) -> str:
        return f"its throughput is limited by {limits_text(self.limits)}"


class DifferentAnswers(Finding):
    template = "its searches differ: batches {batch_sizes:joined}"
    batch_sizes: tuple[int, ...]


class ShortOfMemory(Finding):
    template = (
        "the allocator refused {num_refused:count request}, so that slower algorithms ran: a somewhat smaller batch "
        "may have a higher throughput"
    )
    num_refused: int


class UnvouchedBatch(Finding):
    operators: tuple[str, ...]

    @property
    def sentence(self) -> str:
        return f"its batch was predicted{not_vouched_for(self.operators)}"


@dataclass(frozen=True, kw_only=True)
class ArmSearch:
    arm: str
    is_baseline: bool
    num_runs: int
    statuses: dict[str, int]  # runs by `Run.outcome`; runs cut short count as `completed`
    batch_size: int | None  # Micro-batch; 0: not even 1 trains. The smallest answer of several searches.
    predicted_batch_size: int | None  # 0: not even 1
    times_baseline: float | None  # the batch over the baseline's, if memory bounds both
    bound: Bound | None
    limit: int | None  # `max_batch.limit` if that is the bound
    refusing: Probe | None  # the smallest batch that does not train, with another bound
    outcome: str | None  # outcome and error of the first run of an arm without an answer
    error: str | None
    samples_per_sec: float | None  # median over uncontaminated trainings with the answer
    throughput_ratio: Estimate | None  # over the baseline's, each with its own batch; geometric mean over pairs
    peak_memory_bytes: float | None  # median over trainings with the answer, here and below
    predicted_memory_bytes: float | None
    prediction_error_pct: float | None  # predicted minus measured peak, in percent of the measured peak
    why_unpredicted: str | None  # None with a prediction, or if the device does not support the mode
    probes: tuple[Probe, ...]
    notes: tuple[Finding, ...]

    @property
    def bound_text(self) -> str:
        if self.bound is None:
            return str(self.outcome) if self.error is None else f"{self.outcome}: {self.error}"
        if (failing := self.refusing) is None:
            return f"batch {self.limit} trains, and max_batch.limit ends the search there"
        if (oom := failing.oom) is None:
            return f"batch {failing.batch_size} is refused: {first_line(failing.error or '')}"
        where = f" in {oom.phase}" if oom.phase is not None and oom.phase != "build" else ""
        asked = "" if oom.requested_bytes is None else f": {num_bytes(oom.requested_bytes)} asked for"
        in_use = "" if oom.in_use_bytes is None else f" with {num_bytes(oom.in_use_bytes)} in use"
        return f"batch {failing.batch_size} runs out of memory{where}{asked}{in_use if asked else ''}"

    @property
    def answer(self) -> str:
        if self.batch_size is None:
            return statuses_text(self.statuses)
        if self.batch_size == 0:
            return "not even with a batch of 1"
        ends: dict[Bound | None, str] = {"refused": ", as larger ones are refused", "limit": " or more"}
        ratios = [] if self.times_baseline is None else [ratio(self.times_baseline)]
        if self.throughput_ratio is not None:
            ratios.append(f"{ratio(self.throughput_ratio.value)} the throughput, n={self.throughput_ratio.n}")
        beside = f" ({', '.join(ratios)})" if ratios else ""
        return f"up to batch {self.batch_size}{ends.get(self.bound, '')}{beside}"


@dataclass(frozen=True, kw_only=True)
class SearchComparison:
    """The searches of all arms, the baseline first; `facts` have no batch size."""

    title: str
    facts: Mapping[str, Scalar]
    memory_limit_bytes: int | None  # `trainer.memory_limit_gib`; None: the device's memory
    arms: tuple[ArmSearch, ...]
    runs: tuple[RunEntry, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(arm.arm for arm in self.arms)

    @property
    def heading(self) -> str:
        limit = self.memory_limit_bytes
        return self.title if limit is None else f"{self.title}, within {num_bytes(limit)}"

    @property
    def sentence(self) -> str:
        limit = self.memory_limit_bytes
        where = "On this device" if limit is None else f"Within {num_bytes(limit)}"
        answers = [f"{arm.arm} {arm.answer}" for arm in self.arms if arm.batch_size is not None]
        none = [f"{arm.arm}: {arm.answer}" for arm in self.arms if arm.batch_size is None]
        clauses = [f"{where}: {', '.join(answers)}"] if answers else []
        return f"{'; '.join([*clauses, *none])}."

    @property
    def lines(self) -> list[str]:
        unpredicted: dict[str, list[str]] = defaultdict(list)
        for arm in self.arms:
            if arm.why_unpredicted is not None:
                unpredicted[first_line(arm.why_unpredicted)].append(arm.arm)
        return [
            *(f"{arm.arm}: {arm.bound_text}" for arm in self.arms),
            *(f"{', '.join(arms)}: nothing was predicted: {why}" for why, arms in unpredicted.items()),
            *(f"{arm.arm}: {note.sentence}" for arm in self.arms for note in arm.notes),
        ]


def compare_search(workload: Workload, baseline: str) -> SearchComparison:
    entries = {run.directory: run_entry(run) for run in workload.runs}
    runs_of = workload.of_arms(baseline)
    limit_gib = workload.runs[0].record.config.get("trainer", {}).get("memory_limit_gib")
    return SearchComparison(
        title=workload.title,
        facts=workload.facts,
        memory_limit_bytes=None if limit_gib is None or limit_gib > LARGEST_FIGURE else round(limit_gib * GIB),
        arms=tuple(
            _summarise(arm, [entries[run.directory] for run in runs], runs_of.get(baseline, []), arm == baseline)
            for arm, runs in runs_of.items()
        ),
        runs=tuple(entries.values()),
    )


def _summarise(arm: str, entries: Sequence[RunEntry], of_baseline: Sequence[Run], is_baseline: bool) -> ArmSearch:
    runs = [entry.run for entry in entries]
    answers, reference = _answers(runs), _answers(of_baseline)
    smallest = min(answers, key=lambda search: search.largest, default=None)
    other = min(reference, key=lambda search: search.largest, default=None)
    times = None
    if smallest and other and not is_baseline and _bound(smallest) == _bound(other) == "memory":
        times = smallest.largest / other.largest if smallest.largest and other.largest else None
    searches = [search for run in runs if (search := run.record.batch_search)]
    predicted = [search.predicted for search in searches if search.predicted]
    bound = None if smallest is None else _bound(smallest)
    first = entries[0] if smallest is None else None
    speeds = [figures_of_runs(of, SAMPLES_PER_SEC) for of in (runs, of_baseline)]
    return ArmSearch(
        arm=arm,
        is_baseline=is_baseline,
        num_runs=len(runs),
        statuses=dict(Counter("completed" if run.measured else run.outcome for run in runs)),
        batch_size=None if smallest is None else smallest.largest,
        predicted_batch_size=next((batch.batch_size for batch in predicted if batch.batch_size is not None), None),
        times_baseline=times,
        bound=bound,
        limit=smallest.limit if smallest is not None and bound == "limit" else None,
        refusing=None if smallest is None else smallest.refusing,
        outcome=None if first is None else first.status,
        error=None if first is None else first.error,
        samples_per_sec=_median(runs, SAMPLES_PER_SEC),
        throughput_ratio=None if is_baseline else ratio_between(*speeds),
        peak_memory_bytes=None if (peak := _median(runs, PEAK_MEMORY)) is None else peak * GIB,
        predicted_memory_bytes=known_median(run.predicted_bytes for run in runs),
        prediction_error_pct=known_median(run.prediction_error_pct for run in runs),
        why_unpredicted=next((batch.refused for batch in predicted if batch.refused is not None), None),
        probes=tuple(sorted(searches[0].probes, key=lambda probe: probe.batch_size)),
        notes=tuple(_notes(entries, answers, predicted)),
    )


def _answers(runs: Sequence[Run]) -> list[BatchSearch]:
    """Searches that ended, with a training or without any batch that trains."""
    found = [(run, search) for run in runs if (search := run.record.batch_search) is not None]
    return [search for run, search in found if run.measured or (run.outcome == "oom" and search.largest == 0)]


def _bound(search: BatchSearch) -> Bound:
    if search.refusing is None:
        return "limit"
    return "memory" if search.refusing.outcome == "oom" else "refused"


def _median(runs: Sequence[Run], key: str) -> float | None:
    return known_median(run.compared_figure(key) for run in runs)


def _notes(
    entries: Sequence[RunEntry], answers: Sequence[BatchSearch], predicted: Sequence[PredictedBatch]
) -> Iterator[Finding]:
    compared = [entry for entry in entries if entry.run.measured]
    measured = [entry.run for entry in compared]
    lost = [entry for entry in entries if answers and not entry.run.measured and entry.status != "oom" and entry.error]
    found = [finding for entry in (*lost, *compared) for finding in entry.findings]
    yield from merged(finding for finding in found if isinstance(finding, NotCompleted))
    timed = [run for run in measured if run.contamination is None]
    if timed and (limits := step_limits(timed)):
        yield LimitedThroughput(limits=limits)
    sizes = sorted({search.largest for search in answers})
    if len(sizes) > 1:
        yield DifferentAnswers(batch_sizes=tuple(sizes))
    num_refused = max((round(run.figure("memory/num_refused") or 0) for run in measured), default=0)
    if num_refused:
        yield ShortOfMemory(num_refused=num_refused)
    operators = sorted({name for batch in predicted for name in batch.unvouched or ()})
    if operators:
        yield UnvouchedBatch(operators=tuple(operators))
