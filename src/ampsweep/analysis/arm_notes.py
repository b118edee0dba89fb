"""Notes on the runs of an arm, for readers of its figures: early ends, repeats, figures left out."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ampsweep.analysis.causes import causes
from ampsweep.analysis.float8_gain import Float8Summary, float8_summary
from ampsweep.analysis.pairing import Pair, Unpaired
from ampsweep.analysis.runs import STEP_MS, Run, TrainedOn
from ampsweep.text import first_line

NoteKind = Literal[
    "not completed",
    "cut short",
    "disproved",
    "contaminated",
    "not timed",
    "graph breaks",
    "recompiled",
    "not compiled",
    "float8",
    "not paired",
    "unusable figure",
    "no channels last",
    "nothing recomputed",
    "repeats",
    "several pair keys",
    "other device",
]


@dataclass(frozen=True, kw_only=True)
class ArmNote:
    """One note on the runs with these seeds, with the facts of its kind."""

    kind: NoteKind
    seeds: tuple[int, ...] = ()
    status: str | None = None
    """The status of runs that are not completed."""
    cause: str | None = None
    """Text from the records: an error, a contradiction, the contamination, or the value that is no figure."""
    unpaired: Unpaired | None = None
    metric: str | None = None
    num_runs: int | None = None
    """Runs of one seed that are repeats of each other."""
    num_breaks: int | None = None
    """Breaks of a compiled run's graph; `cause` is the first."""
    num_apart: int | None = None
    """Pairs, of `num_pairs`, whose runs trained on different devices."""
    num_pairs: int | None = None
    num_runs_on: tuple[tuple[TrainedOn, int], ...] = ()
    """Number of the arm's paired runs by where they trained."""
    float8: Float8Summary | None = None
    baseline: str | None = None
    num_baseline_runs_on: tuple[tuple[TrainedOn, int], ...] = ()


def arm_notes(
    runs: Sequence[Run], unpaired: Mapping[Path, Unpaired], pairs: Sequence[Pair] = ()
) -> tuple[ArmNote, ...]:
    """The notes on one arm's `runs`, a cause once with all of its seeds (see `causes`).

    Args:
        runs: the runs of one arm and workload.
        unpaired: run directory -> the reason why that run is in no pair.
        pairs: the arm's pairs.
    """
    seeds: dict[ArmNote, list[int]] = defaultdict(list)
    repeats: Counter[tuple[str, int]] = Counter()
    for run in runs:
        for note in _of_run(run, unpaired.get(run.directory)):
            seeds[note].append(run.seed)
        if run.measured:
            repeats[run.pair_key, run.seed] += 1
    notes = list(_merged(seeds))
    notes += [
        ArmNote(kind="repeats", seeds=(seed,), num_runs=count) for (_, seed), count in repeats.items() if count > 1
    ]
    several = [seed for seed, count in Counter(seed for _, seed in repeats).items() if count > 1]
    if several:
        notes.append(ArmNote(kind="several pair keys", seeds=_unique(several)))
    return (*notes, *_elsewhere(pairs))


def _elsewhere(pairs: Sequence[Pair]) -> Iterator[ArmNote]:
    """The note on pairs whose runs trained on different devices, though of one model: these may differ in speed."""
    apart = [pair for pair in pairs if _devices_of(pair.arm_runs).keys() != _devices_of(pair.baseline_runs).keys()]
    if apart:
        yield ArmNote(
            kind="other device",
            seeds=_unique([pair.arm_runs[0].seed for pair in apart]),
            num_apart=len(apart),
            num_pairs=len(pairs),
            num_runs_on=tuple(sorted(_devices_of([run for pair in pairs for run in pair.arm_runs]).items())),
            baseline=apart[0].baseline_runs[0].arm,
            num_baseline_runs_on=tuple(sorted(_devices_of([r for pair in pairs for r in pair.baseline_runs]).items())),
        )


def _devices_of(runs: Sequence[Run]) -> Counter[TrainedOn]:
    return Counter(run.trained_on for run in runs)


def _merged(seeds: Mapping[ArmNote, Sequence[int]]) -> Iterator[ArmNote]:
    """One note of those that differ in the figures of their causes only."""
    alike: dict[ArmNote, list[tuple[int, str]]] = defaultdict(list)
    for note, of in seeds.items():
        alike[replace(note, cause=None)] += [(seed, note.cause or "") for seed in of]
    for note, recorded in alike.items():
        for cause in causes(recorded):
            yield replace(note, seeds=cause.seeds, cause=cause.text or None)


def _of_run(run: Run, unpaired: Unpaired | None) -> list[ArmNote]:
    record, notes = run.record, []
    if record.status != "completed":
        error = first_line(record.error) if record.error else None
        notes.append(ArmNote(kind="not completed", status=record.status, cause=error))
    elif record.cut_short is not None:
        notes.append(ArmNote(kind="cut short", cause=first_line(record.cut_short)))
    if run.contradictions:
        notes.append(ArmNote(kind="disproved", cause="; ".join(run.contradictions)))
    if run.measured and run.contamination is not None:
        notes.append(ArmNote(kind="contaminated", cause=run.contamination))
    elif run.measured and (why := record.absent.get(STEP_MS)) is not None:
        notes.append(ArmNote(kind="not timed", cause=why))
    if run.measured:
        notes += _of_compilation(run)
    if run.measured and (float8 := float8_summary(record.proof.float8)) is not None:
        notes.append(ArmNote(kind="float8", float8=float8))
    if run.measured and unpaired is not None:
        notes.append(ArmNote(kind="not paired", unpaired=unpaired))
    notes += [ArmNote(kind=kind) for kind in without_effect(run)]
    for key, value in run.wrong_figures().items():
        notes.append(ArmNote(kind="unusable figure", metric=key, cause=value))
    return notes


def without_effect(run: Run) -> Iterator[NoteKind]:
    """The kinds of notes on settings of the trainer that changed nothing in the step that was traced."""
    proof, trainer = run.record.proof, run.record.config.get("trainer", {})
    # Of older records, which have neither, nothing is known.
    if trainer.get("channels_last") and proof.channels_last_flops == {}:
        yield "no channels last"
    if trainer.get("activation_checkpointing") and proof.num_repeated_operators == 0:
        yield "nothing recomputed"


def _of_compilation(run: Run) -> Iterator[ArmNote]:
    """Notes on compiled code that is less than it seems: in pieces, compiled again while it was timed, or none."""
    found = run.record.compilation
    if run.record.proof.traced == "compiled" and not found.num_graphs:
        yield ArmNote(kind="not compiled")
    if found.graph_breaks:
        first = found.graph_breaks[0]
        cause = first.reason if first.place is None else f"{first.place}: {first.reason}"
        yield ArmNote(kind="graph breaks", num_breaks=len(found.graph_breaks), cause=cause)
    late = [one for one in found.recompilations or () if not one.in_warmup]
    if late:
        yield ArmNote(kind="recompiled", cause=late[0].reason)


def _unique(seeds: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(set(seeds)))
