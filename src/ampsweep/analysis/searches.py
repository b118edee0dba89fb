"""The largest batch that trains in each arm, and the throughput there."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.analysis.arms import PEAK_MEMORY
from ampsweep.analysis.run_entry import RunEntry, run_entry
from ampsweep.analysis.runs import GIB, LARGEST_FIGURE, Run, Scalar
from ampsweep.analysis.statistics import Estimate, known_median, mean_ratio
from ampsweep.analysis.workloads import Workload
from ampsweep.record.batch_search import BatchSearch, Probe
from ampsweep.text import first_line, num_bytes, plural, ratio

SAMPLES_PER_SEC: Final = "perf/samples_per_sec"

Bound = Literal["memory", "refused", "limit"]
"""Why there is no larger batch: no memory, data or a model that refuse it, or `max_batch.limit`."""

_TITLE_FACTS: Final = ("model", "data", "seq_len", "device_name")


@dataclass(frozen=True, kw_only=True)
class ArmSearch:
    """What the searches of one arm found. What none has found is None."""

    arm: str
    is_baseline: bool
    num_runs: int
    status: str
    """`completed` where each search and the training with its answer were (cut short or not), else how they ended."""
    batch_size: int | None
    """Micro-batch; 0: not even one of 1 trains. Of several searches the smallest answer."""
    predicted_batch_size: int | None
    """What was predicted for it before anything was tried; 0: not even one of 1."""
    times_baseline: float | None
    """Only where memory bounds both."""
    bound: Bound | None
    why: str
    """The bound in a clause; for an arm without an answer, why there is none."""
    samples_per_sec: float | None
    """Median over the uncontaminated trainings with the answer."""
    throughput_ratio: Estimate | None
    """This arm's samples per second over the baseline's, each with its own batch; geometric mean over pairs."""
    peak_memory_bytes: float | None
    """Median over the trainings with the answer."""
    predicted_memory_bytes: float | None
    """Median over runs of the peak that was predicted for their training with the answer."""
    prediction_error_pct: float | None
    """Median over runs of the predicted peak less the measured one, in percent of it."""
    why_unpredicted: str | None
    """Why nothing was predicted; None where something was, or where the device cannot do the mode."""
    probes: tuple[Probe, ...]
    """Of the arm's first search, by batch size."""
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SearchComparison:
    """All arms of one question, the baseline first; `facts` are those of the workload, without a batch size."""

    title: str
    facts: Mapping[str, Scalar]
    memory_limit_bytes: int | None
    """That of `trainer.memory_limit_gib`; None: the device's own memory."""
    arms: tuple[ArmSearch, ...]
    sentence: str
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
    shown = workload.varied or {key: workload.facts.get(key) for key in _TITLE_FACTS}
    return SearchComparison(
        title=", ".join(f"{key} {value}" for key, value in shown.items() if value is not None),
        facts=workload.facts,
        memory_limit_bytes=limit,
        arms=arms,
        sentence=_sentence(arms, "On this device" if limit is None else f"Within {num_bytes(limit)}"),
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
    counted = Counter("completed" if run.measured else run.outcome for run in runs)
    return ArmSearch(
        arm=arm,
        is_baseline=is_baseline,
        num_runs=len(runs),
        status=", ".join(counted) if len(counted) == 1 else ", ".join(f"{n} {status}" for status, n in counted.items()),
        batch_size=None if smallest is None else smallest.largest,
        predicted_batch_size=next((one.batch_size for one in predicted if one.batch_size is not None), None),
        times_baseline=times,
        bound=None if smallest is None else _bound(smallest),
        why=_why_none(runs) if smallest is None else _why(smallest),
        samples_per_sec=_median([run for run in runs if run.contamination is None], SAMPLES_PER_SEC),
        throughput_ratio=mean_ratio(speeds) if speeds else None,
        peak_memory_bytes=None if (peak := _median(runs, PEAK_MEMORY)) is None else peak * GIB,
        predicted_memory_bytes=known_median(run.predicted_bytes for run in runs),
        prediction_error_pct=known_median(run.prediction_error_pct for run in runs),
        why_unpredicted=next((one.refused for one in predicted if one.refused is not None), None),
        probes=_probes(runs),
        notes=tuple(_notes(runs, answers)),
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


def _why(search: BatchSearch) -> str:
    failing = search.refusing
    if failing is None:
        return f"batch {search.limit} trains, and max_batch.limit ends the search there"
    if failing.oom is None:
        return f"batch {failing.batch_size} is refused: {first_line(failing.error or '')}"
    oom = failing.oom
    where = f" in {oom.phase}" if oom.phase is not None and oom.phase != "build" else ""
    asked = "" if oom.requested_bytes is None else f": {num_bytes(oom.requested_bytes)} asked for"
    in_use = "" if oom.in_use_bytes is None else f" with {num_bytes(oom.in_use_bytes)} in use"
    return f"batch {failing.batch_size} runs out of memory{where}{asked}{in_use if asked else ''}"


def _why_none(runs: Sequence[Run]) -> str:
    run = runs[0]
    return f"{run.outcome}: {first_line(run.record.error)}" if run.record.error else run.outcome


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


def _notes(runs: Sequence[Run], answers: Sequence[BatchSearch]) -> list[str]:
    notes = [
        f"seed {run.seed} {run.outcome}: {first_line(run.record.error)}"
        for run in runs
        if run.record.error and answers and not run.measured and run.outcome != "oom"
    ]
    disturbed = [reason for run in runs if run.measured and (reason := run.contamination) is not None]
    if disturbed:
        share = f"{len(disturbed)} of {plural(len(runs), 'run')}"
        notes.append(f"contaminated, hence no throughput of {share}: {disturbed[0]}")
    sizes = sorted({search.largest for search in answers})
    if len(sizes) > 1:
        notes.append(f"its searches differ: batches {', '.join(map(str, sizes))}")
    return notes


def _sentence(arms: Sequence[ArmSearch], where: str) -> str:
    found = [f"{arm.arm} {_clause(arm)}" for arm in arms if arm.batch_size is not None]
    none = [f"{arm.arm}: {arm.status}" for arm in arms if arm.batch_size is None]
    clauses = [f"{where}: {', '.join(found)}"] if found else []
    return f"{'; '.join([*clauses, *none])}."


def _clause(arm: ArmSearch) -> str:
    if arm.batch_size == 0:
        return "not even with a batch of 1"
    ends = {"memory": "", "refused": ", as larger ones are refused", "limit": " or more", None: ""}[arm.bound]
    ratios = [] if arm.times_baseline is None else [ratio(arm.times_baseline)]
    if arm.throughput_ratio is not None:
        ratios.append(f"{ratio(arm.throughput_ratio.value)} the throughput")
    return f"up to batch {arm.batch_size}{ends}" + (f" ({', '.join(ratios)})" if ratios else "")
