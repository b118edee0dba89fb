"""One run as an entry in the list of runs."""

from dataclasses import dataclass, replace
from pathlib import Path

from ampsweep.analysis.pairing import Unpaired
from ampsweep.analysis.rank_table import RankTable, ranks_of_run
from ampsweep.analysis.runs import Run
from ampsweep.record.outcome import OutOfMemory
from ampsweep.text import first_line


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One run in the list of runs. `status` tells `cut short` and `disproved` from `completed`."""

    directory: str
    run_id: str
    arm: str
    seed: int
    status: str
    error: str | None
    oom: OutOfMemory | None
    """The facts of a run that ended so; its sentence is the error."""
    not_paired: Unpaired | None
    """The reason why this run is in no pair; None for one that is."""
    contaminated: str | None
    """The reason why its speed does not count; None where it does, or where there are no figures to count."""
    tracked_at: str | None
    """The W&B page of the run, or W&B's local directory of one logged offline."""
    ranks: RankTable | None = None
    """Its ranks side by side; None where there is one."""

    def relative_to(self, base: Path) -> "RunEntry":
        """Copy the entry with its directory relative to another (see `path_from`)."""
        return replace(self, directory=path_from(base, self.directory))


def path_from(base: Path, path: str) -> str:
    """`path` as seen from `base`, which is resolved, where it lies below it; elsewhere absolute.

    Of a link the name counts, not what it points to.
    """
    absolute = Path(path).parent.resolve() / Path(path).name
    return absolute.relative_to(base).as_posix() if absolute.is_relative_to(base) else absolute.as_posix()


def run_entry(run: Run, not_paired: Unpaired | None) -> RunEntry:
    """The entry of `run`; `not_paired`: why it is in no pair."""
    record = run.record
    return RunEntry(
        directory=run.directory.as_posix(),
        run_id=record.run_id,
        arm=run.arm,
        seed=run.seed,
        status=run.outcome,
        error=first_line(record.error) if record.error else None,
        oom=record.oom,
        not_paired=not_paired,
        contaminated=run.contamination if run.measured else None,
        tracked_at=run.tracked_at,
        ranks=ranks_of_run(run),
    )
