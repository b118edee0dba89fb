"""Settings and environments of runs: the differences between runs, with the common part listed once."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ampsweep.analysis.runs import Run, Scalar
from ampsweep.report.table import Table
from ampsweep.text import plural

Facts = Mapping[str, Scalar]


def differences(runs: Sequence[Run]) -> list[str]:
    """For each run the settings in which the runs differ, arm and seed apart: `data.batch_size=16 optimizer.lr=0.1`."""
    settings = [run.settings for run in runs]
    varied = _varied(settings)
    return [" ".join(f"{key}={_text(one[key])}" for key in varied if key in one) for one in settings]


def arms_table(runs: Sequence[Run]) -> Table:
    """An arm a row: the parts of its precision in which the arms differ, and what its traced step computed in."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.arm, run)
    precision = {arm: flat(run.record.config.get("precision", {})) for arm, run in first.items()}
    varied = [key for key in _varied(list(precision.values())) if key != "mode"]
    rows = tuple((arm, *(_text(precision[arm].get(key)) for key in varied), _arithmetic(runs, arm)) for arm in first)
    headers = ("arm", *varied, "matrix arithmetic of the traced step")
    return Table(headers, (False,) * len(headers), rows)


def environment_tables(runs: Sequence[Run]) -> tuple[Table, Table]:
    """Facts about machine and software: those of all runs, and those that differ, with the runs of each value."""
    environments = [(run, flat(run.record.environment)) for run in runs if run.record.environment]
    varied = set(_varied([facts for _, facts in environments]))
    keys = dict.fromkeys(key for _, facts in environments for key in facts)
    common = tuple((key, _text(environments[0][1].get(key))) for key in keys if key not in varied)
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for run, facts in environments:
        for key in varied:
            owners[key, _text(facts.get(key))].append(run.arm)
    differing = tuple(
        (key, value, f"{plural(len(arms), 'run')}: {', '.join(dict.fromkeys(arms))}")
        for (key, value), arms in sorted(owners.items())
    )
    return (
        Table(("fact", "value"), (False, False), common),
        Table(("fact", "value", "runs"), (False, False, False), differing),
    )


def flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """The leaves of nested mappings by dotted key; lists as JSON."""
    leaves: dict[str, Scalar] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            is_scalar = value is None or isinstance(value, str | int | float | bool)
            leaves[f"{prefix}{key}"] = value if is_scalar else json.dumps(value, default=str)
    return leaves


def _varied(settings: Sequence[Facts]) -> list[str]:
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({_text(one.get(key)) for one in settings}) > 1]


def _arithmetic(runs: Iterable[Run], arm: str) -> str:
    """Shares of the traced step's matrix FLOPs by dtype, of the arm's first run that was traced."""
    for run in runs:
        flops = run.record.proof.flops
        if run.arm == arm and flops:
            total = sum(flops.values())
            return ", ".join(f"{dtype} {100 * count / total:.1f}%" for dtype, count in flops.items() if count)
    return "-"


def _text(value: Scalar) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)
