"""The command that would probably decide an open verdict: that of the runs' own multirun, with more seeds or steps."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ampsweep.analysis.recommendation import NoBaseline, NoOtherArms, Recommendation, Rivals
from ampsweep.analysis.runs import Run
from ampsweep.config.modes import MODES
from ampsweep.config.schema import SEEDS_FOR_SPEED
from ampsweep.redaction import HIDDEN

Started = Callable[[Path, bool], Sequence[str]]
"""The overrides that run beside the run in a directory (`into=`) as it did or, if True, as its whole multirun did; none
if it is of no multirun."""

_OTHER_MODES: Final = ("amp_bf16", "fp32")
_LENGTHS: Final = ("steps", "epochs", "max_seconds")
_MAX_LISTED: Final = 6  # seeds; more are a range


def deciding_command(of: Recommendation, runs_of: Mapping[str, Sequence[Run]], started: Started) -> str | None:
    """None if it is decided, or if runs alone would not decide it, or were not started by one multirun."""
    arms, undecided = tuple[str, ...](), of.undecided
    if isinstance(undecided, NoBaseline):
        arms = (of.baseline,)
    elif isinstance(undecided, NoOtherArms):
        arms = tuple(mode for mode in _OTHER_MODES if mode != of.baseline)[:1]
    elif isinstance(undecided, Rivals):
        arms = (of.baseline, *undecided.arms)
    if not arms:
        return None
    there = [runs_of[arm][0] for arm in arms if arm in runs_of]
    every = [run for runs in runs_of.values() for run in runs]
    if every and every[0].record.config.get("report", {}).get("decide"):  # it chooses arms and seeds by itself
        report = every[0].record.config["report"]
        is_spent = len({run.seed for run in every}) >= report["max_seeds"] + SEEDS_FOR_SPEED
        needs_longer = isinstance(undecided, Rivals) and any(what.needs_longer for what in undecided.missing)
        return None if is_spent or needs_longer else _line(started(every[0].directory, True))
    values = _merged([started(run.directory, False) for run in there or every[:1]])
    if values is None or len(values["into"]) > 1:
        return None
    if len(there) < len(arms):
        if not MODES.keys() >= {*arms} or any(key.startswith("precision.") for key in values):
            return None
        values["precision"] = [*arms]
    seeds = sorted({run.seed for run in every})
    if isinstance(undecided, Rivals):
        if any(what.needs_longer for what in undecided.missing):
            trainer = every[0].record.config.get("trainer", {})
            values |= {f"trainer.{key}": [f"{2 * trainer[key]}"] for key in _LENGTHS if trainer.get(key)}
        elif more := undecided.num_seeds:
            unfinished = sorted({run.seed for run in every if run.record.status == "interrupted"})
            seeds = [*unfinished, *range(seeds[-1] + 1, seeds[-1] + 1 + more)][:more]
        else:
            return None
    is_range = len(seeds) > _MAX_LISTED and seeds == [*range(seeds[0], seeds[-1] + 1)]
    values["seed"] = [f"range({seeds[0]},{seeds[-1] + 1})"] if is_range else [*map(str, seeds)]
    return _line([key if own == [""] else f"{key}={','.join(own)}" for key, own in values.items()])


def _line(words: Sequence[str]) -> str | None:
    if not words or any(HIDDEN in word for word in words):
        return None
    return shlex.join(["python", "train.py", "-m", *words])


def _merged(each: Sequence[Sequence[str]]) -> dict[str, list[str]] | None:
    """Overrides of several runs as those of one multirun, by key; None if one of them has none."""
    if not all(each):
        return None
    values: dict[str, list[str]] = {"into": [], "seed": []}
    for overrides in each:
        for key, _, value in (override.partition("=") for override in overrides):
            own = values.setdefault(key, [])
            own += [] if value in own else [value]
    return values
