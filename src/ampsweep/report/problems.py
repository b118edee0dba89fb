"""Problems of a set of runs, as rows of their own: failures are results too."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ampsweep.analysis.causes import causes
from ampsweep.analysis.comparison import Comparison, FileProblem, WorkloadComparison
from ampsweep.analysis.run_entry import RunEntry
from ampsweep.analysis.runs import Run
from ampsweep.analysis.seam_comparison import SeamComparison
from ampsweep.analysis.search_comparison import SearchComparison
from ampsweep.report.sentences.explaining import unpaired
from ampsweep.report.sentences.file_problems import CONSEQUENCES, leak
from ampsweep.report.table import Table
from ampsweep.report.workload_data import ArmRuns
from ampsweep.text import first_line, listed


@dataclass(frozen=True)
class Problem:
    """Runs of one arm and workload with the same problem. Of a run that cannot be read all three are unknown."""

    what: str
    why: str
    arm: str | None = None
    compared: WorkloadComparison | SearchComparison | SeamComparison | None = None
    """The workload, search or seam that the runs belong to."""
    seeds: tuple[int, ...] = ()

    @property
    def consequence(self) -> str:
        return CONSEQUENCES[self.what]


def problems(comparison: Comparison, compared: Sequence[ArmRuns]) -> list[Problem]:
    """Everything that keeps a run's figures from counting in full, the gravest first.

    Args:
        comparison: with directories and files as seen from where the problems are shown.
        compared: its workloads and searches.
    """
    of_files: dict[str, list[FileProblem]] = defaultdict(list)
    for one in comparison.file_problems:
        of_files[PurePath(one.path).parent.as_posix()].append(one)
    found = [problem for data in compared for problem in _of_runs(data, of_files)]
    found += [Problem(*_told(one)) for of_directory in of_files.values() for one in of_directory]
    order = list(CONSEQUENCES)
    return sorted(found, key=lambda problem: order.index(problem.what))


def _of_runs(data: ArmRuns, of_files: dict[str, list[FileProblem]]) -> Iterator[Problem]:
    """The problems of one workload's runs, those that differ in figures only as one.

    The problems of their files are taken out of `of_files`.
    """
    alike: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for run, entry in data.listed:
        for what, why in (*_of_run(run, entry), *map(_told, of_files.pop(entry.directory, ()))):
            alike[what, run.arm].append((run.seed, why))
    for (what, arm), recorded in alike.items():
        for cause in causes(recorded):
            yield Problem(what, cause.text, arm, data.compared, cause.seeds)


def _told(of: FileProblem) -> tuple[str, str]:
    return of.kind, f"{of.path} {of.reason}"


def problems_table(found: Sequence[Problem], *, with_workload: bool) -> Table:
    """The problems as texts, where there are several workloads `with_workload`."""
    headers = ("problem", "arm", "why", "consequence", "seeds", "workload")[: 5 + with_workload]
    rows = tuple(_row(one)[: len(headers)] for one in found)
    return Table(headers, (False,) * len(headers), rows)


def _row(one: Problem) -> tuple[str, ...]:
    seeds = listed(map(str, one.seeds)) or "-"
    return one.what, one.arm or "-", one.why, one.consequence, seeds, one.compared.title if one.compared else "-"


def _of_run(run: Run, entry: RunEntry) -> Iterator[tuple[str, str]]:
    loss_is_no_matter = run.measured and run.record.batch_search is not None
    if entry.status != "completed" and not loss_is_no_matter:
        why = run.record.error or run.record.cut_short or "; ".join(run.contradictions)
        yield entry.status, first_line(why) if why else ""
    speed_matters = run.record.identity.saved_in is None  # of runs that change their precision only the loss does
    if entry.contaminated is not None and speed_matters:
        yield "contaminated", entry.contaminated
    if (leaked := run.leaked_bytes) is not None:
        yield "leaks", leak(leaked)
    if run.measured and entry.not_paired is not None:
        yield "not paired", unpaired(entry.not_paired)
