"""The largest batches that train in words: what each arm takes, and why it takes no more."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ampsweep.analysis.search_comparison import ArmSearch, Bound, SearchComparison, SearchNote
from ampsweep.report.sentences.arm_findings import statuses, step_limit, unchecked
from ampsweep.report.sentences.explaining import causes
from ampsweep.report.sentences.unvouched import not_vouched_for
from ampsweep.text import first_line, num_bytes, plural, ratio

HEADING: Final = "Largest batch that trains"


def heading(found: SearchComparison) -> str:
    """Name what was searched, and within which memory."""
    limit = "" if found.memory_limit_bytes is None else f", within {num_bytes(found.memory_limit_bytes)}"
    return f"{found.title}{limit}"


def largest_batches(found: SearchComparison) -> str:
    """The answer of every arm in one sentence."""
    limit = found.memory_limit_bytes
    where = "On this device" if limit is None else f"Within {num_bytes(limit)}"
    answers = [f"{arm.arm} {_answer(arm)}" for arm in found.arms if arm.batch_size is not None]
    none = [f"{arm.arm}: {statuses(arm.statuses)}" for arm in found.arms if arm.batch_size is None]
    clauses = [f"{where}: {', '.join(answers)}"] if answers else []
    return f"{'; '.join([*clauses, *none])}."


def bound(arm: ArmSearch) -> str:
    """Say why an arm takes no larger batch; of one without an answer, why there is none."""
    if arm.bound is None:
        return f"{arm.outcome}" if arm.error is None else f"{arm.outcome}: {arm.error}"
    failing = arm.refusing
    if failing is None:
        return f"batch {arm.limit} trains, and max_batch.limit ends the search there"
    if failing.oom is None:
        return f"batch {failing.batch_size} is refused: {first_line(failing.error or '')}"
    oom = failing.oom
    where = f" in {oom.phase}" if oom.phase is not None and oom.phase != "build" else ""
    asked = "" if oom.requested_bytes is None else f": {num_bytes(oom.requested_bytes)} asked for"
    in_use = "" if oom.in_use_bytes is None else f" with {num_bytes(oom.in_use_bytes)} in use"
    return f"batch {failing.batch_size} runs out of memory{where}{asked}{in_use if asked else ''}"


def search_note(of: SearchNote) -> str:
    """A note on the searches of an arm."""
    match of.kind:
        case "not completed":
            return f"seed {of.seed} {of.outcome}: {of.cause}"
        case "contaminated":
            share = f"{of.num_contaminated} of {plural(of.num_runs, 'run')}"
            return f"contaminated, hence no throughput of {share}: {causes(of.causes)}"
        case "unchecked":
            return f"{unchecked(of.num_unchecked, of.num_runs)}, hence perhaps more throughput than measured"
        case "limited":
            return f"its throughput is limited by {' and '.join(map(step_limit, of.limits))}"
        case "different answers":
            return f"its searches differ: batches {', '.join(map(str, of.batch_sizes))}"
        case "short of memory":
            return _short_of_memory(of)
        case "unvouched":
            return f"its batch was predicted{not_vouched_for(of.operators)}"


def _short_of_memory(of: SearchNote) -> str:
    clauses = []
    if of.num_refused:
        clauses.append(f"refused {plural(of.num_refused, 'request')}, so that slower algorithms ran")
    if of.num_retries:
        clauses.append(f"gave back unused memory for {plural(of.num_retries, 'request')}")
    return f"the allocator {', and '.join(clauses)}: a somewhat smaller batch may have a higher throughput"


def search_notes(of: Sequence[SearchNote]) -> str:
    """The notes on an arm in one text."""
    return "; ".join(map(search_note, of))


def search_lines(found: SearchComparison) -> list[str]:
    """Say why no arm takes a larger batch, and what else a reader of the table must know, a line each."""
    lines = [f"{arm.arm}: {bound(arm)}" for arm in found.arms]
    unpredicted: dict[str, list[str]] = defaultdict(list)
    for arm in found.arms:
        if arm.why_unpredicted is not None:
            unpredicted[first_line(arm.why_unpredicted)].append(arm.arm)
    lines += [f"{', '.join(arms)}: nothing was predicted: {why}" for why, arms in unpredicted.items()]
    return lines + [f"{arm.arm}: {search_note(note)}" for arm in found.arms for note in arm.notes]


def _answer(arm: ArmSearch) -> str:
    if arm.batch_size == 0:
        return "not even with a batch of 1"
    ends: dict[Bound | None, str] = {"refused": ", as larger ones are refused", "limit": " or more"}
    ratios = [] if arm.times_baseline is None else [ratio(arm.times_baseline)]
    if arm.throughput_ratio is not None:
        ratios.append(f"{ratio(arm.throughput_ratio.value)} the throughput, n={arm.throughput_ratio.n}")
    return f"up to batch {arm.batch_size}{ends.get(arm.bound, '')}" + (f" ({', '.join(ratios)})" if ratios else "")
