"""Comparison of the largest batch that trains in each arm, and of the throughput there."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.causes import Cause, causes
from ampsweep.analysis.run_entry import RunEntry, run_entry
from ampsweep.analysis.runs import LARGEST_FIGURE, PEAK_MEMORY, Run, Scalar
from ampsweep.analysis.statistics import Estimate, known_median, mean_ratio
from ampsweep.analysis.step_limits import StepLimit, step_limits
from ampsweep.analysis.workloads import Workload
from ampsweep.record.batch_search import BatchSearch, PredictedBatch, Probe
from ampsweep.text import GIB, first_line

SAMPLES_PER_SEC: Final = "perf/samples_per_sec"
NUM_REFUSED: Final = "memory/num_refused"
NUM_RETRIES: Final = "memory/num_retries"

Bound = Literal["memory", "refused", "limit"]
"""The bound of a batch: no memory, data or a model that refuse it, or `max_batch.limit`."""
SearchNoteKind = Literal[
    "not completed", "contaminated", "unchecked", "limited", "different answers", "short of memory", "unvouched"
]

_TITLE_FACTS: Final = ("model", "data", "seq_len", "device_name")


@dataclass(frozen=True, kw_only=True)
class SearchNote:
    """A note on the searches of an arm, with the facts of its kind."""

    kind: SearchNoteKind
    seed: int | None = None
    outcome: str | None = None
    """The end of the run of that seed."""
    cause: str | None = None
    """The error in the record."""
    causes: tuple[Cause, ...] = ()
    """The causes that contaminated runs recorded."""
    num_contaminated: int = 0
    num_unchecked: int = 0
    num_runs: int = 0
    limits: tuple[StepLimit, ...] = ()
    """Limits of the step with the largest batch that no precision moves."""
    batch_sizes: tuple[int, ...] = ()
    num_refused: int = 0
    num_retries: int = 0
    """Requests refused, and served only after unused memory was given back, in the training with the most of both."""
    operators: tuple[str, ...] = ()
    """Operators for whose memory the predicted batch does not vouch."""


@dataclass(frozen=True, kw_only=True)
class ArmSearch:
    """The findings of one arm's searches. A figure that none has found is None."""

    arm: str
    is_baseline: bool
    num_runs: int
    statuses: dict[str, int]
    """Number of runs by how they ended: `completed` where the search and the training with its answer were."""
    batch_size: int | None
    """Micro-batch; 0: not even one of 1 trains. Of several searches the smallest answer."""
    predicted_batch_size: int | None
    """The prediction before anything was tried; 0: not even one of 1."""
    times_baseline: float | None
    """The batch over the baseline's; only if memory bounds both."""
    bound: Bound | None
    limit: int | None
    """`max_batch.limit` of an arm that it bounds."""
    refusing: Probe | None
    """The smallest batch that does not train, of an arm bounded otherwise."""
    outcome: str | None
    """The end of the first run of an arm without an answer."""
    error: str | None
    """The error that this run's record holds."""
    samples_per_sec: float | None
    """Median over the uncontaminated trainings with the answer."""
    throughput_ratio: Estimate | None
    """This arm's samples per second over the baseline's, each with its own batch; geometric mean over pairs."""
    peak_memory_bytes: float | None
    """Median over the trainings with the answer."""
    predicted_memory_bytes: float | None
    """Median over runs of the peak that was predicted for their training with the answer."""
    prediction_error_pct: float | None
    """Median over runs of the predicted peak minus the measured one, in percent of the measured one."""
    why_unpredicted: str | None
    """The reason why nothing was predicted; None where something was, or where the device cannot do the mode."""
    probes: tuple[Probe, ...]
    """Probes of the arm's first search, by batch size."""
    notes: tuple[SearchNote, ...]


@dataclass(frozen=True, kw_only=True)
class SearchComparison:
    """All arms of one question, the baseline first; `facts` are those of the workload, without a batch size."""

    title: str
    facts: Mapping[str, Scalar]
    memory_limit_bytes: int | None
    """The limit set by `trainer.memory_limit_gib`; None if only the device's own memory limits."""
    arms: tuple[ArmSearch, ...]
    runs: tuple[RunEntry, ...]


def compare_search(
    workload: Workload, baseline: str, rank: Callable[[str, str], tuple[bool, int, str]]
) -> SearchComparison:
    """Compare the searches of one workload.

    Args:
        workload: runs whose records have a batch search.
        baseline: the arm the others are compared with.
        rank: sort key of an arm beside the baseline.
    """
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(workload.runs, key=lambda run: rank(run.arm, baseline)):
        runs[run.arm].append(run)
    of_baseline = runs.get(baseline, [])
    arms = tuple(_summarise(arm, own, of_baseline, arm == baseline) for arm, own in runs.items())
    limit_gib = workload.runs[0].record.config.get("trainer", {}).get("memory_limit_gib")
    limit = None if limit_gib is None or limit_gib > LARGEST_FIGURE else round(limit_gib * GIB)
    return SearchComparison(
        title=workload.title_of(_TITLE_FACTS),
        facts=workload.facts,
        memory_limit_bytes=limit,
        arms=arms,
        runs=tuple(run_entry(run, None) for run in workload.runs),
    )


def _summarise(arm: str, runs: Sequence[Run], of_baseline: Sequence[Run], is_baseline: bool) -> ArmSearch:
    answers, reference = _answers(runs), _answers(of_baseline)
    smallest = min(answers, key=_size, default=None)
    times = None
    if smallest is not None and reference and not is_baseline:
        other = min(reference, key=_size)
        if _bound(smallest) == _bound(other) == "memory" and smallest.largest and other.largest:
            times = smallest.largest / other.largest
    speeds = [] if is_baseline else _speed_pairs(runs, of_baseline)
    predicted = [search.predicted for run in runs if (search := run.record.batch_search) and search.predicted]
    bound = None if smallest is None else _bound(smallest)
    first = runs[0] if smallest is None else None
    return ArmSearch(
        arm=arm,
        is_baseline=is_baseline,
        num_runs=len(runs),
        statuses=dict(Counter("completed" if run.measured else run.outcome for run in runs)),
        batch_size=None if smallest is None else smallest.largest,
        predicted_batch_size=next((one.batch_size for one in predicted if one.batch_size is not None), None),
        times_baseline=times,
        bound=bound,
        limit=smallest.limit if smallest is not None and bound == "limit" else None,
        refusing=None if smallest is None else smallest.refusing,
        outcome=None if first is None else first.outcome,
        error=first_line(first.record.error) if first is not None and first.record.error else None,
        samples_per_sec=_median([run for run in runs if run.contamination is None], SAMPLES_PER_SEC),
        throughput_ratio=mean_ratio(speeds) if speeds else None,
        peak_memory_bytes=None if (peak := _median(runs, PEAK_MEMORY)) is None else peak * GIB,
        predicted_memory_bytes=known_median(run.predicted_bytes for run in runs),
        prediction_error_pct=known_median(run.prediction_error_pct for run in runs),
        why_unpredicted=next((one.refused for one in predicted if one.refused is not None), None),
        probes=_probes(runs),
        notes=(*_notes(runs, answers), *_unvouched(predicted)),
    )


def _answers(runs: Sequence[Run]) -> list[BatchSearch]:
    """Searches that have ended, with a training or without any batch that trains."""
    found = [(run, search) for run in runs if (search := run.record.batch_search) is not None]
    return [search for run, search in found if run.measured or (run.outcome == "oom" and search.largest == 0)]


def _size(search: BatchSearch) -> int:
    return search.largest


def _bound(search: BatchSearch) -> Bound:
    if search.refusing is None:
        return "limit"
    return "memory" if search.refusing.outcome == "oom" else "refused"


def _speed_pairs(runs: Sequence[Run], of_baseline: Sequence[Run]) -> list[tuple[float, float]]:
    """(arm, baseline) throughput of one seed, of uncontaminated trainings; of repeats the last."""
    by_key = [
        {run.pair_key: value for run in some if run.contamination is None and (value := _throughput(run))}
        for some in (runs, of_baseline)
    ]
    return [(value, by_key[1][key]) for key, value in by_key[0].items() if key in by_key[1]]


def _throughput(run: Run) -> float | None:
    value = run.figure(SAMPLES_PER_SEC) if run.measured else None
    return value if value is not None and value > 0 else None


def _median(runs: Sequence[Run], key: str) -> float | None:
    return known_median(run.figure(key) for run in runs if run.measured)


def _probes(runs: Sequence[Run]) -> tuple[Probe, ...]:
    first = runs[0].record.batch_search
    assert first is not None
    return tuple(sorted(first.probes, key=lambda probe: probe.batch_size))


def _unvouched(predicted: Sequence[PredictedBatch]) -> Iterator[SearchNote]:
    named = sorted({name for one in predicted for name in one.unvouched or ()})
    if named:
        yield SearchNote(kind="unvouched", operators=tuple(named))


def _notes(runs: Sequence[Run], answers: Sequence[BatchSearch]) -> list[SearchNote]:
    notes = [
        SearchNote(kind="not completed", seed=run.seed, outcome=run.outcome, cause=first_line(run.record.error))
        for run in runs
        if run.record.error and answers and not run.measured and run.outcome != "oom"
    ]
    disturbed = [(run.seed, reason) for run in runs if run.measured and (reason := run.contamination) is not None]
    if disturbed:
        found, num_contaminated = causes(disturbed), len(disturbed)
        notes.append(
            SearchNote(kind="contaminated", num_contaminated=num_contaminated, num_runs=len(runs), causes=found)
        )
    timed = [run for run in runs if run.measured and run.contamination is None]
    num_unchecked = sum(run.unknown_contamination is not None for run in timed)
    if num_unchecked:
        notes.append(SearchNote(kind="unchecked", num_unchecked=num_unchecked, num_runs=len(timed)))
    if timed and (limits := step_limits(timed)):
        notes.append(SearchNote(kind="limited", limits=limits))
    sizes = sorted({search.largest for search in answers})
    if len(sizes) > 1:
        notes.append(SearchNote(kind="different answers", batch_sizes=tuple(sizes)))
    short = [(round(run.figure(NUM_REFUSED) or 0), round(run.figure(NUM_RETRIES) or 0)) for run in runs if run.measured]
    num_refused, num_retries = max(short, default=(0, 0))
    if num_refused or num_retries:
        notes.append(SearchNote(kind="short of memory", num_refused=num_refused, num_retries=num_retries))
    return notes
