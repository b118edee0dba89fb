"""Why an arm is refused whatever its speed: it cannot run here, breaks, is not what it says, or learns worse."""

from collections.abc import Sequence

from ampsweep.analysis.parity import Parity
from ampsweep.analysis.runs import Run
from ampsweep.text import first_line, plural


def refusal(runs: Sequence[Run], baseline_runs: Sequence[Run], parities: Sequence[Parity]) -> str | None:
    """The first reason to refuse the arm of `runs`, with its evidence; None where there is none.

    - every run is `unsupported`;
    - the proof of a run contradicts its mode;
    - a run diverged with a seed (and all else) with which the baseline did not;
    - more than half of the runs ended out of memory or failed;
    - a final metric is worse than the baseline's by more than the margin.
    """
    return (
        _unsupported(runs)
        or _disproved(runs)
        or _diverged(runs, baseline_runs)
        or _mostly(runs, "oom", "failed")
        or next((f"{one.name} is worse: {one.text}" for one in parities if one.verdict == "worse"), None)
    )


def baseline_refusal(runs: Sequence[Run]) -> str | None:
    """Why the runs of the baseline are nothing to compare with: more than half of them ended without figures."""
    return _unsupported(runs) or _mostly(runs, "disproved", "diverged", "oom", "failed")


def _unsupported(runs: Sequence[Run]) -> str | None:
    if any(run.outcome != "unsupported" for run in runs):
        return None
    why = runs[0].record.error
    return f"unsupported: {first_line(why)}" if why else "unsupported on this device"


def _disproved(runs: Sequence[Run]) -> str | None:
    found = [run for run in runs if run.contradictions]
    return f"{'; '.join(found[0].contradictions)}{_in_seeds(found)}" if found else None


def _diverged(runs: Sequence[Run], baseline_runs: Sequence[Run]) -> str | None:
    """Where the baseline diverges too, the learning rate or the data is to blame, not the precision."""
    baseline_too = {run.record.pair_key for run in baseline_runs if run.outcome == "diverged"}
    found = [run for run in runs if run.outcome == "diverged" and run.record.pair_key not in baseline_too]
    if not found:
        return None
    why = found[0].record.error
    so = [run for run in found if run.record.error == why]
    others = [run for run in found if run.record.error != why]
    said = f"{first_line(why) if why else 'diverged'}{_in_seeds(so)}"
    return f"{said}; diverged otherwise{_in_seeds(others)}" if others else said


def _mostly(runs: Sequence[Run], *outcomes: str) -> str | None:
    """The first of `outcomes` that more than half of the runs share, with how many and the first one's error."""
    for outcome in outcomes:
        found = [run for run in runs if run.outcome == outcome]
        if 2 * len(found) > len(runs):
            error = found[0].record.error
            why = f" ({first_line(error)})" if error and outcome != "oom" else ""
            return (
                f"{'out of memory' if outcome == 'oom' else outcome} in {len(found)} of {plural(len(runs), 'run')}{why}"
            )
    return None


def _in_seeds(runs: Sequence[Run]) -> str:
    seeds = sorted({run.seed for run in runs})
    return f" in {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
