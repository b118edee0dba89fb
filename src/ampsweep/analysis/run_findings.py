"""Findings on runs: early ends, repeats, and figures that do not count."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from ampsweep.analysis.figure_keys import VAL_LOSS, logged_keys
from ampsweep.analysis.pairing import Unpaired
from ampsweep.analysis.rank_table import RankTable, ranks_of_run
from ampsweep.analysis.runs import STEP_MS, Run
from ampsweep.config.modes import MODES
from ampsweep.finding import Finding
from ampsweep.records import RunRecord
from ampsweep.records.outcome import OutOfMemory
from ampsweep.records.sections import Float8Proof, WhyKept
from ampsweep.text import by_likeness, first_line, listed, merge_figures, num_bytes, plural, seeds_text

_WHY_KEPT: Final[dict[WhyKept, str]] = {
    "output": "the output layer",
    "size": "sizes that are no multiples of 16",
    "fp32_modules": "kept in float32",
    "subclass": "subclasses of nn.Linear",
    "changed": "hooks, another forward or a computed weight",
    "no_linear": "not nn.Linear",
}


class RunFinding(Finding):
    """A finding on runs of an arm that differ in seeds and measured figures only."""

    template: ClassVar[str] = "{cause}"
    consequence: ClassVar[str] = ""  # their figures that do not count; empty if all count

    seeds: tuple[int, ...]
    cause: str = ""  # text from the records, with ranges for differing figures: '0.6 to 1.0 cores'

    @property
    def name(self) -> str:
        return self.kind().replace("_", " ")

    @property
    def why(self) -> str:
        return self.filled(self.template)

    @property
    def sentence(self) -> str:
        clauses = (f"{self.name}, {self.consequence}" if self.consequence else "", self.why)
        return f"{': '.join(filter(None, clauses))} ({seeds_text(self.seeds)})"


class NotCompleted(RunFinding):
    severity = "fault"
    consequence = "no figures"
    status: str

    @property
    def name(self) -> str:
        return self.status


class CutShort(RunFinding):
    severity = "warning"
    consequence = "its loss does not count"


class StoppedEarly(RunFinding):
    template = "stopped early, its validation metrics are those of its best evaluation: {cause}"


class Disproved(RunFinding):
    severity = "fault"
    consequence = "none of its figures count"


class Disturbed(Finding):
    """What was seen of all contaminated runs."""

    severity = "warning"
    template = "the speed of {num_runs} of {num_measured:count run} is disturbed, and decides nothing: {causes:joined}"
    causes: tuple[str, ...]  # the most common first; those that differ in measured figures alone are one
    num_runs: int
    num_measured: int


class NotTimed(RunFinding):
    template = "no speed: {cause}"


class RoundedFloat32(RunFinding):
    """TF32 in a training of others that was said to be in another mode."""

    severity = "warning"
    template = "{mode} was asked for, and a {cause} in float32 was rounded, as TF32 does"
    consequence = "its speed and losses are those of TF32, as far as it computes in float32"
    mode: str


class EvaluatedNarrower(RunFinding):
    severity = "warning"
    template = "evaluated with parameters in {cause}, trained with others: its evaluations have another precision"
    consequence = "its evaluations tell nothing of the training's precision"


class WithoutMetric(RunFinding):
    severity = "warning"
    template = "no {metric} was logged; there are {cause}"
    consequence = "it does not count for parity"
    metric: str


class Leaks(RunFinding):
    severity = "warning"
    template = "a step left {cause} behind"
    consequence = "its memory may grow beyond the peak shown here"


class NotCarriedOver(RunFinding):
    """A part of another run's checkpoint that was not restored as saved."""


class NotPaired(RunFinding):
    severity = "warning"
    template = "{reason.sentence}"
    consequence = "compared with nothing"
    reason: Unpaired


class GraphBreaks(RunFinding):
    template = "torch.compile broke the graph in {num_breaks:count place}, first at {cause}"
    num_breaks: int


class Recompiled(RunFinding):
    template = "torch.compile compiled again after warm-up ({cause}); those steps are in no figure of time"


class NotCompiled(RunFinding):
    template = "torch.compile found nothing to compile: every step ran eagerly"


class Float8Summary(Finding):
    recipe: str
    num_converted: int
    emulated: str | None  # why the device emulates float8; None if it does not
    kept: tuple[tuple[WhyKept, tuple[str, ...]], ...]  # names of the other layers by reason

    @property
    def sentence(self) -> str:
        emulation = "" if self.emulated is None else f" (emulated: {self.emulated})"
        others = "; ".join(f"{listed(names, limit=4)} ({_WHY_KEPT[why]})" for why, names in self.kept)
        return f"{plural(self.num_converted, 'layer')} in float8{emulation}" + (f", not {others}" if others else "")


class InFloat8(RunFinding):
    template = "{layers.sentence}"
    layers: Float8Summary


class NothingRecomputed(RunFinding):
    template = "trainer.activation_checkpointing=true, and torch.utils.checkpoint recomputed nothing in backward"


class Repeats(Finding):
    template = "{num_runs:count run} of seed {seed} are repeats and averaged"
    seed: int
    num_runs: int


class MissingSeeds(Finding):
    severity = "warning"
    template = "there is no run of {seeds:seeds}, with which the baseline has one"
    seeds: tuple[int, ...]


def merged(findings: Iterable[RunFinding]) -> tuple[RunFinding, ...]:
    """Merge findings whose causes differ at most in measured figures, the most common first."""
    alike: dict[RunFinding, list[RunFinding]] = defaultdict(list)
    for finding in findings:
        alike[replace(finding, seeds=(), cause="")].append(finding)
    found = []
    for common, group in alike.items():
        causes = merge_figures([finding.cause for finding in group])
        for cause, places in sorted(causes, key=lambda item: -len(item[1])):
            seeds = sorted({seed for place in places for seed in group[place].seeds})
            found.append(replace(common, seeds=tuple(seeds), cause=cause))
    return tuple(found)


def disturbed(runs: Iterable[Run]) -> Disturbed | None:
    measured = list({run.directory: run for run in runs if run.measured}.values())
    seen = [run.contamination for run in measured if run.contamination is not None]
    causes = sorted(merge_figures("; ".join(seen).split("; ")), key=lambda cause: -len(cause[1]))
    named = tuple(cause for cause, _ in causes)
    return Disturbed(causes=named, num_runs=len(seen), num_measured=len(measured)) if seen else None


def statuses_text(of: Mapping[str, int]) -> str:
    """`completed` if all were, else '2 completed, 1 failed'."""
    return next(iter(of)) if len(of) == 1 else ", ".join(f"{count} {status}" for status, count in of.items())


def findings_of_run(run: Run, unpaired: Unpaired | None = None) -> Iterator[RunFinding]:
    """Yield the findings on a run; `unpaired`: why it is in no pair."""
    record, seeds = run.record, (run.seed,)
    if record.status != "completed":
        yield NotCompleted(seeds=seeds, status=record.status, cause=first_line(record.error or ""))
    elif record.cut_short is not None and record.batch_search is None:  # a search needs no final loss
        kind = StoppedEarly if record.stopped_early else CutShort
        yield kind(seeds=seeds, cause=first_line(record.cut_short))
    if run.contradictions:
        yield Disproved(seeds=seeds, cause="; ".join(run.contradictions))
    if run.measured and run.contamination is None and (why := record.absent.get(STEP_MS)) is not None:
        yield NotTimed(seeds=seeds, cause=why)
    if run.finished and run.keys.is_recorded and run.figure(VAL_LOSS) is None and record.batch_search is None:
        there = listed(by_likeness(run.keys.metric, logged_keys([record])), limit=4)
        yield WithoutMetric(seeds=seeds, metric=run.keys.metric, cause=there or "no numbers")
    if run.measured:
        yield from findings_of_step(record)
    if run.measured and (float8 := float8_summary(record.proof.float8)) is not None:
        yield InFloat8(seeds=seeds, layers=float8)
    for note in () if record.origin is None else record.origin.notes or ():
        yield NotCarriedOver(seeds=seeds, cause=note)
    if run.measured and record.source != "suite":
        yield from _rounded(record)
    if (dtype := record.proof.eval_parameters) is not None:
        yield EvaluatedNarrower(seeds=seeds, cause=dtype)
    if run.leaked_bytes is not None:
        yield Leaks(seeds=seeds, cause=num_bytes(run.leaked_bytes))
    if run.measured and unpaired is not None:
        yield NotPaired(seeds=seeds, reason=unpaired)


def float8_summary(proof: Float8Proof | None) -> Float8Summary | None:
    """Summarise the float8 part of a proof; None without a traced step."""
    if proof is None or proof.recipe is None or proof.converted is None:
        return None
    kept: dict[WhyKept, list[str]] = defaultdict(list)
    for layer in proof.kept or ():
        kept[layer.why].append(layer.name)
    return Float8Summary(
        recipe=proof.recipe,
        num_converted=len(proof.converted),
        emulated=proof.emulated,
        kept=tuple((why, tuple(names)) for why, names in kept.items()),
    )


def _rounded(record: RunRecord) -> Iterator[RunFinding]:
    mode = MODES.get(record.identity.precision_mode)
    kinds = [kind for kind, how in (record.proof.fp32_arithmetic or {}).items() if how == "rounded"]
    if kinds and mode is not None and mode.settings.parameters == "float32" and not mode.settings.tf32:
        yield RoundedFloat32(seeds=(record.identity.seed,), mode=mode.name, cause=" and a ".join(kinds))


def findings_of_step(record: RunRecord) -> Iterator[RunFinding]:
    """Yield where checkpointing and compilation of the step had no effect, or less than they should."""
    found, seeds = record.compilation, (record.identity.seed,)
    if record.config.get("trainer", {}).get("activation_checkpointing") and record.proof.num_repeated_operators == 0:
        yield NothingRecomputed(seeds=seeds)
    if record.proof.traced == "compiled" and not found.num_graphs:
        yield NotCompiled(seeds=seeds)
    if found.graph_breaks:
        first = found.graph_breaks[0]
        cause = first.reason if first.place is None else f"{first.place}: {first.reason}"
        yield GraphBreaks(seeds=seeds, num_breaks=len(found.graph_breaks), cause=cause)
    if late := [again for again in found.recompilations or () if not again.in_warmup]:
        yield Recompiled(seeds=seeds, cause=late[0].reason)


def findings_of_arm(runs: Sequence[Run], baseline: Sequence[Run], findings: Iterable[RunFinding]) -> Iterator[Finding]:
    yield from merged(findings)
    repeats = Counter((run.pair_key, run.seed) for run in runs if run.measured)
    yield from (Repeats(seed=seed, num_runs=n) for (_, seed), n in repeats.items() if n > 1)
    missing = {run.seed for run in baseline} - {run.seed for run in runs}
    if missing and runs[0].record.source != "suite":  # nobody here has planned these sweeps
        yield MissingSeeds(seeds=tuple(sorted(missing)))


def cannot_run(statuses: Iterable[str]) -> bool:
    """True of an arm, by its runs' outcomes, that the device does not support: it has a line, and no figures."""
    return {*statuses} == {"unsupported"}


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    directory: str
    run_id: str
    arm: str
    seed: int
    status: str
    error: str | None
    oom: OutOfMemory | None
    not_paired: Unpaired | None  # None if it is in a pair, or was not measured
    contaminated: str | None  # why its speed does not count; None if it does, or without figures
    findings: tuple[RunFinding, ...]
    tracked_at: str | None  # see `Run.tracked_at`
    ranks: RankTable | None
    run: Run = field(repr=False)


def run_entry(run: Run, not_paired: Unpaired | None = None) -> RunEntry:
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
