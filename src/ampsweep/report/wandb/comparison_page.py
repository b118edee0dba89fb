"""The page of a comparison for W&B: the panels of the page as figures, its tables with figures instead of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison, WorkloadComparison
from ampsweep.analysis.seam_comparison import Seam, SeamComparison
from ampsweep.analysis.search_comparison import ArmSearch, SearchComparison
from ampsweep.analysis.size_series import SizeSeries, is_multiple
from ampsweep.analysis.statistics import Estimate, Spread
from ampsweep.record import RunRecord
from ampsweep.report.dashboard import Dashboard, PanelShown
from ampsweep.report.figures import PanelFigure
from ampsweep.report.sentences.arm_findings import statuses
from ampsweep.report.sentences.batch_limits import bound, largest_batches, search_notes
from ampsweep.report.sentences.explaining import arm_notes, unpaired
from ampsweep.report.sentences.recommending import conclusion, recommendation
from ampsweep.report.sentences.seams import answer, position
from ampsweep.report.sentences.sizes import series_heading, series_lines
from ampsweep.tracking.wandb.comparison_run import ComparisonPage, PageTable, Scalar

MAX_WORKLOADS: Final = 4
"""The number of workloads, of searches and of series of sizes whose panels are in W&B; the page has those of all."""

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
            "arms": sorted({run.arm for one in comparison.compared for run in one.runs}),
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
    if sizes := [row for one in comparison.series if not one.in_words for row in _size_rows(one, comparison)]:
        tables["sizes"] = PageTable(_SIZE_COLUMNS, sizes)
    if words := [row for one in comparison.series if one.in_words for row in _word_rows(one, comparison)]:
        tables["strategies"] = PageTable(_WORD_COLUMNS, words)
    if ranks := [row for workload, arm in _arms(comparison.workloads) for row in _rank_rows(workload, arm)]:
        tables["ranks"] = PageTable(_RANK_COLUMNS, ranks)
    if comparison.searches:
        rows = [_search_row(found, arm) for found in comparison.searches for arm in found.arms]
        tables["largest_batches"] = PageTable(_SEARCH_COLUMNS, rows)
    if comparison.seams:
        tables["seams"] = PageTable(_SEAM_COLUMNS, [_seam_row(of, one) for of in comparison.seams for one in of.seams])
    return tables


def _summary(comparison: Comparison) -> dict[str, Any]:
    """The verdict; figures of each arm only of a single workload, as those of several have no name of their own."""
    workloads, searches, seams = comparison.workloads, comparison.searches, comparison.seams
    verdicts = [recommendation(workload.verdict) for workload in workloads]
    summary: dict[str, Any] = {
        "status": "completed",
        "verdict": "\n".join([*verdicts, *map(largest_batches, searches), *map(answer, seams)]),
        "num_workloads": len(comparison.compared),
        "num_runs": sum(len(one.runs) for one in comparison.compared),
    }
    if workloads:
        summary |= {
            "conclusion": "\n".join(conclusion(workload) for workload in workloads),
            "recommended_arm": ", ".join(workload.verdict.recommendation.arm or "undecided" for workload in workloads),
        }
    said = [(series_heading(one), series_lines(one)) for one in comparison.series]
    if any(lines for _, lines in said):
        summary["sizes"] = "\n".join(f"{heading}: {'. '.join(lines)}." for heading, lines in said if lines)
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
        *(end for one in estimates for end in _ends(one)),
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


_SIZE_COLUMNS: Final = (
    *("series", "size", "multiple_of_8", "arm", "pairs", "step_ms"),
    *("speedup", "speedup_low", "speedup_high", "memory_saved_pct"),
)


def _size_rows(series: SizeSeries, comparison: Comparison) -> list[tuple[Scalar, ...]]:
    return [
        (
            *(series_heading(series), size, is_multiple(size) if series.of_tensors else None),
            *(arm.arm, arm.num_pairs, arm.step_ms),
            *((None,) * 3 if arm.speedup is None else (arm.speedup.value, arm.speedup.low, arm.speedup.high)),
            None if arm.memory_saved_pct is None else arm.memory_saved_pct.value,
        )
        for size, place in zip(series.sizes, series.workloads, strict=True)
        for arm in comparison.workloads[place].arms
    ]


_AGAINST_FIRST: Final = ("throughput", "memory_saved_bytes", "memory_saved_pct", "loss_gap")
_WORD_COLUMNS: Final = (
    *("series", "strategy", "arm", "ranks", "samples_a_step", "peak_memory_bytes", "memory_spread_bytes", "step_ms"),
    *("communication_ms", "reduced_mib", "val_loss", "first"),
    *(f"{name}{end}" for name in _AGAINST_FIRST for end in ("", "_low", "_high")),
)


def _word_rows(series: SizeSeries, comparison: Comparison) -> list[tuple[Scalar, ...]]:
    steps = {(one.size, one.arm): one for one in series.steps}
    rows: list[tuple[Scalar, ...]] = []
    for size, place in zip(series.sizes, series.workloads, strict=True):
        workload = comparison.workloads[place]
        for arm in workload.arms:
            step, ranks = steps.get((size, arm.arm)), arm.ranks
            estimates: list[Estimate | None] = [getattr(step, name, None) for name in _AGAINST_FIRST]
            rows.append(
                (
                    *(series_heading(series), size, arm.arm, 1 if ranks is None else len(ranks.rows)),
                    *(workload.facts.get("global_batch_size"), arm.peak_memory_bytes),
                    *(None if ranks is None else ranks.memory_spread_bytes, arm.step_ms),
                    *((None, None) if ranks is None else (ranks.communication_ms, ranks.reduced_mib)),
                    *(None if arm.val_loss is None else arm.val_loss.mean, None if step is None else step.first),
                    *(end for one in estimates for end in _ends(one)),
                )
            )
    return rows


_RANK_COLUMNS: Final = (
    *("workload", "arm", "rank", "host", "device", "device_name", "peak_memory_bytes", "step_ms", "data_wait_ms"),
    *("communication_ms", "is_fullest", "is_slowest"),
)


def _rank_rows(workload: WorkloadComparison, arm: ArmComparison) -> list[tuple[Scalar, ...]]:
    ranks = arm.ranks
    if ranks is None:
        return []
    return [
        (
            *(workload.title, arm.arm, row.rank),
            *(", ".join(each) or None for each in (row.hosts, row.devices, row.device_names)),
            *(row.peak_bytes, row.step_ms, row.data_wait_ms, row.communication_ms),
            *(row.rank == ranks.fullest, row.rank == ranks.slowest),
        )
        for row in ranks.rows
    ]


def _ends(of: Estimate | None) -> tuple[float | None, ...]:
    return (None,) * 3 if of is None else (of.value, of.low, of.high)


_OF_SEAM: Final = ("loss_jump", "val_loss_jump", "final_gap")
_SEAM_COLUMNS: Final = (
    *("workload", "saved_in", "resumed_in", "status", "runs"),
    *(f"{name}{end}" for name in _OF_SEAM for end in ("", "_sd")),
    *("then", "skipped_steps", "notes"),
)


def _seam_row(found: SeamComparison, one: Seam) -> tuple[Scalar, ...]:
    spreads: list[Spread | None] = [getattr(one, name) for name in _OF_SEAM]
    return (
        *(found.title, one.saved_in, one.resumed_in, statuses(one.statuses), one.num_runs),
        *(value for of in spreads for value in ((None, None) if of is None else (of.mean, of.sd))),
        *(position(one), one.skipped_steps, "; ".join(note.text for note in one.notes)),
    )


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


def _run_rows(compared: WorkloadComparison | SearchComparison | SeamComparison) -> list[tuple[Scalar, ...]]:
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
    across = [item for series in dashboard.series[:MAX_WORKLOADS] for item in series.shown]
    numbered = enumerate(across, start=1)
    return figures | {f"panels across/{panel.key}-{number}": _figure(picture) for number, (panel, picture) in numbered}


def _named(name: str, several: Sequence[Sequence[PanelShown]]) -> dict[str, Sequence[PanelShown]]:
    """By the name, with a number where there are several."""
    return {name if len(several) == 1 else f"{name} {number}": one for number, one in enumerate(several, start=1)}


def _figure(shown: PanelFigure) -> dict[str, Any]:
    return {"data": list(shown.traces), "layout": dict(shown.layout)}
