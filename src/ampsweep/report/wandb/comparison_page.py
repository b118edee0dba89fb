"""The page of a comparison for W&B: the panels of the page as figures, its tables with figures instead of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison, WorkloadComparison
from ampsweep.analysis.search_comparison import ArmSearch, SearchComparison
from ampsweep.analysis.statistics import Estimate
from ampsweep.record import RunRecord
from ampsweep.report.dashboard import Dashboard, PanelShown
from ampsweep.report.figures import PanelFigure
from ampsweep.report.sentences.arm_findings import statuses
from ampsweep.report.sentences.batch_limits import bound, largest_batches, search_notes
from ampsweep.report.sentences.explaining import arm_notes, unpaired
from ampsweep.report.sentences.recommending import conclusion, recommendation
from ampsweep.tracking.wandb.comparison_run import ComparisonPage, PageTable, Scalar

MAX_WORKLOADS: Final = 4
"""The number of workloads whose panels are in W&B; the page has those of all."""

_ESTIMATES: Final = ("speedup", "memory_saved_bytes", "memory_saved_pct", "loss_gap", "autocast_penalty")
_COLUMNS: Final = (
    *("workload", "arm", "status", "runs", "pairs", "step_ms"),
    *("peak_memory_bytes", "predicted_memory_bytes", "prediction_error_pct", "val_loss", "val_accuracy"),
    *(f"{name}{end}" for name in _ESTIMATES for end in ("", "_low", "_high")),
    *("loss_gap_pct", "parity", "skipped_steps", "notes"),
)


def comparison_page(
    dashboard: Dashboard, records: Sequence[tuple[Path, RunRecord]], *, group: str | None, html: Path
) -> ComparisonPage:
    """The comparison as W&B is to show it.

    Args:
        dashboard: the comparison, arranged.
        records: of its runs, at least one.
        group: of these runs in W&B.
        html: the comparison's page.
    """
    comparison = dashboard.comparison
    # The oldest run stays the oldest when more are added.
    oldest = min((record for _, record in records), key=lambda record: (record.started_at or "", record.run_id))
    return ComparisonPage(
        id=f"comparison-{oldest.run_id}",
        name=f"comparison-{group or oldest.identity.experiment}",
        config={
            "experiment": oldest.identity.experiment,
            "baseline": comparison.baseline,
            "margin_pct": comparison.margin_pct,
            "arms": sorted({arm.arm for one in comparison.compared for arm in one.arms}),
            "workloads": [one.title for one in comparison.compared],
        },
        summary=_summary(comparison),
        tables=_tables(comparison),
        figures=_figures(dashboard),
        html=html,
        tags=tuple(dict.fromkeys(tag for _, record in records for tag in _tags(record))),
    )


def _tags(record: RunRecord) -> list[str]:
    tags: list[str] = record.config.get("tracking", {}).get("tags", [])
    return tags


def _tables(comparison: Comparison) -> dict[str, PageTable]:
    tables = {"runs": PageTable(_RUN_COLUMNS, [row for one in comparison.compared for row in _run_rows(one)])}
    if comparison.workloads:
        rows = [_arm_row(workload, arm) for workload, arm in _arms(comparison.workloads)]
        tables["arms"] = PageTable(_COLUMNS, rows)
    if comparison.searches:
        rows = [_search_row(found, arm) for found in comparison.searches for arm in found.arms]
        tables["largest_batches"] = PageTable(_SEARCH_COLUMNS, rows)
    return tables


def _summary(comparison: Comparison) -> dict[str, Any]:
    """The verdict; figures of each arm only of a single workload, as those of several have no name of their own."""
    workloads, searches = comparison.workloads, comparison.searches
    verdicts = [recommendation(workload.verdict) for workload in workloads]
    summary: dict[str, Any] = {
        "status": "completed",
        "verdict": "\n".join([*verdicts, *(largest_batches(found) for found in searches)]),
        "num_workloads": len(comparison.compared),
        "num_runs": sum(len(one.runs) for one in comparison.compared),
    }
    if workloads:
        summary |= {
            "conclusion": "\n".join(conclusion(workload) for workload in workloads),
            "recommended_arm": ", ".join(workload.verdict.recommendation.arm or "undecided" for workload in workloads),
        }
    if len(searches) == 1:
        figures = {f"{arm.arm}/{name}": getattr(arm, name) for arm in searches[0].arms for name in _OF_SEARCH}
        summary |= {name: value for name, value in figures.items() if value is not None}
    if len(workloads) == 1:
        for workload, arm in _arms(workloads):
            row = dict(zip(_COLUMNS, _arm_row(workload, arm), strict=True))
            figures = {name: row[name] for name in (*_ESTIMATES, "parity", "step_ms", "val_loss", "peak_memory_bytes")}
            summary |= {f"{arm.arm}/{name}": value for name, value in figures.items() if value is not None}
    return summary


def _arms(workloads: Sequence[WorkloadComparison]) -> list[tuple[WorkloadComparison, ArmComparison]]:
    return [(workload, arm) for workload in workloads for arm in workload.arms]


def _arm_row(workload: WorkloadComparison, arm: ArmComparison) -> tuple[Scalar, ...]:
    verdict = next((one for one in workload.verdict.arms if one.arm == arm.arm), None)
    estimates: list[Estimate | None] = [getattr(arm, name) for name in _ESTIMATES]
    return (
        *(workload.title, arm.arm, statuses(arm.statuses), arm.num_runs, arm.num_pairs, arm.step_ms),
        *(arm.peak_memory_bytes, arm.predicted_memory_bytes, arm.prediction_error_pct),
        None if arm.val_loss is None else arm.val_loss.mean,
        None if arm.val_accuracy is None else arm.val_accuracy.mean,
        *(end for one in estimates for end in ((None,) * 3 if one is None else (one.value, one.low, one.high))),
        arm.loss_gap_pct,
        None if verdict is None or not verdict.parities else verdict.judgements.parity,
        arm.skipped_steps,
        arm_notes(arm.notes),
    )


_OF_SEARCH: Final = (
    *("batch_size", "predicted_batch_size", "times_baseline", "samples_per_sec"),
    *("peak_memory_bytes", "predicted_memory_bytes", "prediction_error_pct"),
)
_SEARCH_COLUMNS: Final = ("workload", "arm", "status", "runs", *_OF_SEARCH, "why", "why_unpredicted", "notes")


def _search_row(found: SearchComparison, arm: ArmSearch) -> tuple[Scalar, ...]:
    figures = (getattr(arm, name) for name in _OF_SEARCH)
    said = (bound(arm), arm.why_unpredicted, search_notes(arm.notes))
    return (found.title, arm.arm, statuses(arm.statuses), arm.num_runs, *figures, *said)


_RUN_COLUMNS: Final = (
    "workload",
    "arm",
    "seed",
    "status",
    "error",
    "not_paired",
    "contaminated",
    "run_id",
    "directory",
)


def _run_rows(compared: WorkloadComparison | SearchComparison) -> list[tuple[Scalar, ...]]:
    rows = [{name: getattr(run, name) for name in _RUN_COLUMNS[1:]} for run in compared.runs]
    for row in rows:
        row["not_paired"] = None if row["not_paired"] is None else unpaired(row["not_paired"])
    return [(compared.title, *row.values()) for row in rows]


def _figures(dashboard: Dashboard) -> dict[str, dict[str, Any]]:
    """Plotly's JSON by key in W&B: `panels/memory-saved`, of several workloads `panels 2/memory-saved`."""
    shown = {
        **_named("panels", [one.shown for one in dashboard.workloads[:MAX_WORKLOADS]]),
        **_named("largest batch", [one.shown for one in dashboard.searches[:MAX_WORKLOADS]]),
    }
    figures = {f"{name}/{panel.key}": _figure(picture) for name, panels in shown.items() for panel, picture in panels}
    across = [item for _, of_series in dashboard.across for item in of_series]
    numbered = enumerate(across, start=1)
    return figures | {f"panels across/{panel.key}-{number}": _figure(picture) for number, (panel, picture) in numbered}


def _named(name: str, several: Sequence[Sequence[PanelShown]]) -> dict[str, Sequence[PanelShown]]:
    """By the name, with a number where there are several."""
    return {name if len(several) == 1 else f"{name} {number}": one for number, one in enumerate(several, start=1)}


def _figure(shown: PanelFigure) -> dict[str, Any]:
    return {"data": list(shown.traces), "layout": dict(shown.layout)}
