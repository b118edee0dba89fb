"""Filters of the page: facts in which the workloads differ, arms and seeds."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from ampsweep.analysis.comparison import WorkloadComparison
from ampsweep.analysis.runs import Scalar
from ampsweep.report.dashboard import Dashboard
from ampsweep.report.page.markup import Markup, join, swatch, tag

_LABELS: Final = {"model": "Model", "model_size": "Size", "batch_size": "Batch", "seq_len": "Sequence", "data": "Data"}
_FIRST: Final = ("model", "model_size", "batch_size")


def filter_keys(workloads: Sequence[WorkloadComparison]) -> list[str]:
    """Facts to filter by: those that vary, without any that only repeats an earlier one."""
    keys = list(dict.fromkeys(key for workload in workloads for key in workload.facts))
    keys.sort(key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    chosen: list[str] = []
    seen: set[tuple[int, ...]] = set()
    for key in keys:
        first: dict[str, int] = {}
        values = [fact_text(workload.facts.get(key)) for workload in workloads]
        partition = tuple(first.setdefault(value, place) for place, value in enumerate(values))
        if len(set(partition)) > 1 and partition not in seen:
            seen.add(partition)
            chosen.append(key)
    return chosen


def filter_bar(dashboard: Dashboard) -> Markup:
    """The controls; one with a single choice is left out."""
    workloads = dashboard.comparison.workloads
    selects = [
        _select(key, _LABELS.get(key, key), dict.fromkeys(fact_text(one.facts.get(key)) for one in workloads))
        for key in filter_keys(workloads)
    ]
    seeds = sorted({run.seed for workload in workloads for run in workload.runs})
    shown = [seed for seed in seeds if dashboard.extent.has(seed)]
    label = "Seed" if len(shown) == len(seeds) else f"Seed (the first {len(shown)} of {len(seeds):,})"
    selects.append(_select("seed", label, [str(seed) for seed in shown]))
    return tag(
        "form",
        _arm_buttons(dashboard) if len(dashboard.styles) > 1 else None,
        *selects,
        tag("button", "Show all", type="reset", id="show-all", hidden=True),
        tag("output", "", id="filter-state", aria_live="polite"),
        class_="filters",
        id="filters",
        aria_label="Filters",
    )


def facts_attribute(facts: Mapping[str, Scalar], keys: Sequence[str]) -> str:
    """`facts` as the page's script reads them to decide whether an element is shown."""
    return json.dumps({key: fact_text(facts[key]) for key in keys if key in facts})


def fact_text(value: Scalar) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _select(key: str, label: str, values: Sequence[str] | Mapping[str, None]) -> Markup | None:
    if len(values) < 2:
        return None
    ordered = sorted(values, key=_numeric_first)
    options = [tag("option", "all", value=""), *(tag("option", value, value=value) for value in ordered)]
    return tag("label", tag("span", label), tag("select", *options, name=key, autocomplete="off"))


def _arm_buttons(dashboard: Dashboard) -> Markup:
    buttons = [
        tag("button", swatch(style), tag("bdi", arm), type="button", class_="arm", data_arm=arm, aria_pressed="true")
        for arm, style in dashboard.styles.items()
    ]
    return tag("fieldset", tag("legend", "Arms"), join(*buttons))


def _numeric_first(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
