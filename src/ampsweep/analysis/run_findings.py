"""Findings on single runs, and on the runs of an arm together: early ends, repeats, figures that do not count."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from ampsweep.analysis.float8_gain import Float8Summary, float8_summary
from ampsweep.analysis.pairing import Pair, Unpaired
from ampsweep.analysis.rank_table import RankTable, ranks_of_run
from ampsweep.analysis.runs import STEP_MS, Run, TrainedOn
from ampsweep.finding import Finding
from ampsweep.record import RunRecord
from ampsweep.record.outcome import OutOfMemory
from ampsweep.text import first_line, merge_figures, num_bytes, plural, seeds_text


class RunFinding(Finding):
    """A finding on runs of one arm that are alike in all but their seeds and measured figures."""

    template: ClassVar[str] = "{cause}"
    """The clause, with the names of fields."""
    consequence: ClassVar[str] = ""
    """The figures of these runs that do not count; empty where all do."""

    seeds: tuple[int, ...]
    cause: str = ""
    """Text from the record; figures in which the runs' texts differ are ranges: '0.6 to 1.0 cores'."""

    @property
    def clause(self) -> str:
        """The sentence without the seeds."""
        return self.filled(self.template)

    @property
    def sentence(self) -> str:
        return f"{self.clause} ({seeds_text(self.seeds)})"

    @property
    def name(self) -> str:
        """The kind in a few words, as the name of a problem."""
        return self.kind().replace("_", " ")

    @property
    def why(self) -> str:
        """The clause, or the cause alone where the name says the rest."""
        return self.cause


class NotCompleted(RunFinding):
    """The run failed, diverged, ran out of memory, or could not begin."""

    severity = "fault"
    consequence = "no figures"

    status: str

    @property
    def clause(self) -> str:
        return f"{self.status}: {self.cause}" if self.cause else self.status

    @property
    def name(self) -> str:
        return self.status


class CutShort(RunFinding):
    severity = "warning"
    template = "cut short, hence no loss to compare: {cause}"
    consequence = "its loss does not count"


class Disproved(RunFinding):
    severity = "fault"
    template = "disproved, hence compared with nothing: {cause}"
    consequence = "none of its figures count"


class Contaminated(RunFinding):
    severity = "warning"
    template = "contaminated, hence no speed to compare: {cause}"
    consequence = "its speed does not count"


class NotTimed(RunFinding):
    template = "no speed: {cause}"


class Leaks(RunFinding):
    """The traced step left memory behind; the cause tells how much."""

    severity = "warning"
    template = "a step left {cause} behind"
    consequence = "its memory may grow beyond the peak told here"

    @property
    def why(self) -> str:
        return self.clause


class NotCarriedOver(RunFinding):
    """A part of another run's checkpoint that did not carry over as it was saved."""


class NotPaired(RunFinding):
    severity = "warning"
    template = "not paired: {why}"
    consequence = "compared with nothing"

    reason: Unpaired

    @property
    def why(self) -> str:
        return self.reason.sentence


class GraphBreaks(RunFinding):
    """The compiled step is in pieces; the cause is the first break."""

    template = "torch.compile broke the graph in {num_breaks:count place}, first at {cause}"

    num_breaks: int


class Recompiled(RunFinding):
    template = "torch.compile compiled again after warm-up ({cause}); those steps are in no figure of time"


class NotCompiled(RunFinding):
    template = "torch.compile found nothing to compile: every step ran eagerly"


class InFloat8(RunFinding):
    """The layers that multiplied in float8, and what that can gain."""

    template = "{layers.sentence}"

    layers: Float8Summary


class UnusableFigure(RunFinding):
    """The record has something else in the place of a figure."""

    severity = "warning"
    template = "{metric} is not a usable figure ({cause}) and left out"

    metric: str


class NoChannelsLast(RunFinding):
    template = "trainer.channels_last=true, and no convolution had its input and weight in that format"


class NothingRecomputed(RunFinding):
    template = "trainer.activation_checkpointing=true, and torch.utils.checkpoint recomputed nothing in backward"


class Repeats(Finding):
    """Runs of one seed and pair key."""

    template = "{num_runs:count run} of seed {seed} are repeats and averaged"

    seed: int
    num_runs: int


class SeveralPairKeys(Finding):
    template = (
        "under several pair keys, each a pair of its own: other code, data, device or environment ({seeds:seeds})"
    )

    seeds: tuple[int, ...]


class OtherDevice(Finding):
    """Pairs whose runs trained on different devices, though of one model: these may differ in speed."""

    severity = "warning"

    seeds: tuple[int, ...]
    num_apart: int
    num_pairs: int
    baseline: str
    num_runs_on: tuple[tuple[TrainedOn, int], ...]
    """Number of the arm's paired runs by where they trained."""
    num_baseline_runs_on: tuple[tuple[TrainedOn, int], ...]

    @property
    def sentence(self) -> str:
        here, there = map(self._places, (self.num_runs_on, self.num_baseline_runs_on))
        pairs = f"{self.num_apart} of {plural(self.num_pairs, 'pair')}"
        places = f"on {here}; {self.baseline} on {there}"
        return f"another device than {self.baseline} in {pairs}: {places} ({seeds_text(self.seeds)})"

    def _places(self, num_runs_on: Sequence[tuple[TrainedOn, int]]) -> str:
        """Devices with the number of runs on each; with their machines if they are of several."""
        several = len({place.hosts for place, _ in (*self.num_runs_on, *self.num_baseline_runs_on)}) > 1
        hosts = [f" of {' and '.join(place.hosts)}" if several and place.hosts else "" for place, _ in num_runs_on]
        named = zip(num_runs_on, hosts, strict=True)
        return ", ".join(f"{' and '.join(place.devices)}{host} ({count})" for (place, count), host in named)


_Found = TypeVar("_Found", bound=RunFinding)


def merged(findings: Iterable[_Found]) -> tuple[_Found, ...]:
    """Findings on single runs, the same ones in several as one, whose causes differ in measured figures at most.

    Kinds stay in the order in which they come; of one kind the cause of most runs is first.
    """
    alike: dict[_Found, list[_Found]] = defaultdict(list)
    for one in findings:
        alike[replace(one, seeds=(), cause="")].append(one)
    found = []
    for common, group in alike.items():
        causes = merge_figures([one.cause for one in group])
        for cause, which in sorted(causes, key=lambda item: -len(item[1])):
            seeds = _unique(seed for place in which for seed in group[place].seeds)
            found.append(replace(common, seeds=seeds, cause=cause))
    return tuple(found)


def statuses_text(of: Mapping[str, int]) -> str:
    """The ends of runs: `completed` where every one did, else '2 completed, 1 failed'."""
    return next(iter(of)) if len(of) == 1 else ", ".join(f"{count} {status}" for status, count in of.items())


def findings_of_run(run: Run, unpaired: Unpaired | None = None) -> Iterator[RunFinding]:
    """The findings on one run; `unpaired`: the reason why it is in no pair.

    Where a search is for the largest batch a loss does not matter.
    """
    record, seeds = run.record, (run.seed,)
    searches = record.batch_search is not None
    if record.status != "completed":
        yield NotCompleted(seeds=seeds, status=record.status, cause=first_line(record.error or ""))
    elif record.cut_short is not None and not searches:
        yield CutShort(seeds=seeds, cause=first_line(record.cut_short))
    if run.contradictions:
        yield Disproved(seeds=seeds, cause="; ".join(run.contradictions))
    if run.measured and run.contamination is not None:
        yield Contaminated(seeds=seeds, cause=run.contamination)
    elif run.measured and (why := record.absent.get(STEP_MS)) is not None:
        yield NotTimed(seeds=seeds, cause=why)
    if run.measured:
        yield from _of_compilation(run)
    if run.measured and (float8 := float8_summary(record.proof.float8)) is not None:
        yield InFloat8(seeds=seeds, layers=float8)
    for note in () if record.origin is None else record.origin.notes or ():
        yield NotCarriedOver(seeds=seeds, cause=note)
    if run.leaked_bytes is not None:
        yield Leaks(seeds=seeds, cause=num_bytes(run.leaked_bytes))
    if run.measured and unpaired is not None:
        yield NotPaired(seeds=seeds, reason=unpaired)
    yield from without_effect(record)
    for key, value in run.wrong_figures().items():
        yield UnusableFigure(seeds=seeds, metric=key, cause=value)


def without_effect(record: RunRecord) -> Iterator[RunFinding]:
    """Findings on settings of the trainer that changed nothing in the step that was traced."""
    trainer, seeds = record.config.get("trainer", {}), (record.identity.seed,)
    if trainer.get("channels_last") and record.proof.channels_last_flops == {}:
        yield NoChannelsLast(seeds=seeds)
    if trainer.get("activation_checkpointing") and record.proof.num_repeated_operators == 0:
        yield NothingRecomputed(seeds=seeds)


def _of_compilation(run: Run) -> Iterator[RunFinding]:
    """Findings on compiled code that is less than it seems: in pieces, compiled again while it was timed, or none."""
    found, seeds = run.record.compilation, (run.seed,)
    if run.record.proof.traced == "compiled" and not found.num_graphs:
        yield NotCompiled(seeds=seeds)
    if found.graph_breaks:
        first = found.graph_breaks[0]
        cause = first.reason if first.place is None else f"{first.place}: {first.reason}"
        yield GraphBreaks(seeds=seeds, num_breaks=len(found.graph_breaks), cause=cause)
    late = [one for one in found.recompilations or () if not one.in_warmup]
    if late:
        yield Recompiled(seeds=seeds, cause=late[0].reason)


def findings_of_arm(runs: Sequence[Run], findings: Iterable[RunFinding], pairs: Sequence[Pair]) -> tuple[Finding, ...]:
    """The `findings` on one arm's `runs`, each once with all of its seeds, then those on all runs and `pairs` of it."""
    repeats = Counter((run.pair_key, run.seed) for run in runs if run.measured)
    several = [seed for seed, count in Counter(seed for _, seed in repeats).items() if count > 1]
    return (
        *merged(findings),
        *(Repeats(seed=seed, num_runs=count) for (_, seed), count in repeats.items() if count > 1),
        *([SeveralPairKeys(seeds=_unique(several))] if several else []),
        *_on_other_devices(pairs),
    )


def _on_other_devices(pairs: Sequence[Pair]) -> Iterator[OtherDevice]:
    apart = [pair for pair in pairs if _places(pair.arm_runs).keys() != _places(pair.baseline_runs).keys()]
    if apart:
        yield OtherDevice(
            seeds=_unique(pair.arm_runs[0].seed for pair in apart),
            num_apart=len(apart),
            num_pairs=len(pairs),
            baseline=apart[0].baseline_runs[0].arm,
            num_runs_on=tuple(sorted(_places(run for pair in pairs for run in pair.arm_runs).items())),
            num_baseline_runs_on=tuple(sorted(_places(run for pair in pairs for run in pair.baseline_runs).items())),
        )


def _places(runs: Iterable[Run]) -> Counter[TrainedOn]:
    return Counter(run.trained_on for run in runs)


def _unique(seeds: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(seeds)))


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
    """The reason why this run is in no pair; None for one that is, or that was not measured."""
    contaminated: str | None
    """The reason why its speed does not count; None where it does, or where there are no figures to count."""
    findings: tuple[RunFinding, ...]
    tracked_at: str | None
    """The W&B page of the run, or W&B's local directory of one logged offline."""
    ranks: RankTable | None
    run: Run = field(repr=False)
    """The run itself, in its directory as it was given."""


def run_entry(run: Run, not_paired: Unpaired | None = None) -> RunEntry:
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
        findings=tuple(findings_of_run(run, not_paired)),
        tracked_at=run.tracked_at,
        ranks=ranks_of_run(run),
        run=run,
    )
