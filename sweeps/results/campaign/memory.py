"""The sections about memory and power: categories, batch sizes, the largest batch, what the device drew."""

from collections.abc import Sequence

from ampsweep.analysis.estimate_text import ratio_figure
from ampsweep.analysis.runs import GIB, Run
from ampsweep.report.columns import ABSENT
from ampsweep.report.palette import CATEGORY_COLOURS, MODE_COLOURS
from ampsweep.text import num_bytes, ratio
from campaign.results import ArmRuns, Results, arms_of, searches_of
from campaign.section import DEVICE, Section, arms_table, commands, signed_percent, table, thousands, told
from campaign.svg import Bar, Line, bars, lines, stacked

WORKLOADS: Sequence[tuple[str, dict[str, bool]]] = (
    ("recipe", {}),
    ("gpt_small", {"compile": False}),
    ("gpt_small", {"compile": True}),
    ("resnet50", {"channels_last": False}),
    ("resnet50", {"channels_last": True}),
)
"""Experiments with the facts that tell their workloads apart."""


def by_category(results: Results) -> Section | None:
    """Where the bytes are at the peak of a step, for each eager workload."""
    section = Section("Where the memory goes")
    for experiment, facts in WORKLOADS:
        arms = arms_of(results.of(experiment, **facts))
        rows = {arm.arm: _peak(arm) for arm in arms if _peak(arm)}
        if not rows or facts in ({"compile": True}, {"channels_last": False}):
            continue
        categories = [key for key in CATEGORY_COLOURS if any(parts.get(key) for parts in rows.values())]
        section.add(f"### {experiment}")
        cells = [[arm, *(num_bytes(parts.get(key, 0)) for key in categories)] for arm, parts in rows.items()]
        section.add(*table(["arm", *(key.replace("_", " ") for key in categories)], cells))
        texts = {arm: num_bytes(sum(parts.values())) for arm, parts in rows.items()}
        svg = stacked(f"{experiment}: bytes at the peak of a traced step", rows, CATEGORY_COLOURS, texts)
        section.show(f"memory_{experiment}.svg", svg, f"{experiment}: memory by category")
    return section if section.lines else None


def by_batch(results: Results) -> Section | None:
    """Measured and predicted peaks against batch size."""
    section = Section("Peak memory against batch size, and its prediction")
    runs = [Run(path, record) for path, record in results.of("memory_by_batch")]
    for model in dict.fromkeys(run.record.identity.model for run in runs):
        of_model = [run for run in runs if run.record.identity.model == model]
        section.add(f"### {model}")
        section.add(*_batch_table(of_model))
        series = _series(of_model)
        if series:
            title = f"{model}: peak memory, measured (dots) and predicted (lines)"
            svg = lines(title, series, x_title="batch size", y_text=num_bytes)
            section.show(f"memory_by_batch_{model}.svg", svg, f"{model}: memory against batch size")
    if not section.lines:
        return None
    section.add(*commands(results.ledger, "memory_by_batch"))
    return section


def largest_batch(results: Results) -> Section | None:
    """The largest batch that trains in each mode, by memory limit."""
    runs = results.of("max_batch")
    if not runs:
        return None
    section = Section("The largest batch that trains")
    for found in searches_of(runs):
        limit = "the device's memory" if found.memory_limit_bytes is None else num_bytes(found.memory_limit_bytes)
        section.add(f"### Within {limit}")
        section.add(f"{found.sentence}")
        rows = [
            [
                arm.arm,
                told(lambda value: f"{value:.0f}", arm.batch_size),
                told(ratio, arm.times_baseline),
                told(thousands, arm.samples_per_sec),
                ABSENT if arm.throughput_ratio is None else ratio_figure(arm.throughput_ratio),
                told(num_bytes, arm.peak_memory_bytes),
                f"{len(arm.probes)}",
            ]
            for arm in found.arms
        ]
        section.add(*table(["arm", "batch", "over fp32", "samples/s", "over fp32", "peak", "batches tried"], rows))
        shown = [
            Bar(arm.arm, arm.batch_size, f"{arm.batch_size}", MODE_COLOURS[arm.arm])
            for arm in found.arms
            if arm.batch_size
        ]
        if shown:
            size = "device" if found.memory_limit_bytes is None else f"{found.memory_limit_bytes / GIB:g}_gib"
            section.show(f"max_batch_{size}.svg", bars(f"Largest batch within {limit}", shown), "largest batch by mode")
    section.add(*commands(results.ledger, "max_batch"))
    return section


def power(results: Results) -> Section | None:
    """What the device drew and how busy it was."""
    section = Section("Utilization, power and energy")
    section.add(
        "Sampled ten times a second over the steps after warm-up; energy by the device's own counter, where those "
        "steps lasted two seconds."
    )
    found = False
    for experiment, facts in WORKLOADS:
        arms = arms_of(results.of(experiment, **facts))
        rows = arms_table(arms, DEVICE) if arms else []
        if rows and any(arm.median("device/power_w") is not None for arm in arms):
            found = True
            told_facts = "".join(f", {key} {str(value).lower()}" for key, value in facts.items())
            section.add(f"### {experiment}{told_facts}")
            section.add(*rows)
    return section if found else None


def _peak(arm: ArmRuns) -> dict[str, float]:
    for run in arm.runs:
        if run.measured and run.record.memory.peak is not None:
            return {key: float(value) for key, value in run.record.memory.peak.items()}
    return {}


def _batch_table(runs: Sequence[Run]) -> list[str]:
    rows = []
    for run in sorted(runs, key=lambda run: (run.arm, run.record.identity.batch_size)):
        rows.append(
            [
                run.arm,
                str(run.record.identity.batch_size),
                run.outcome,
                told(num_bytes, run.num_bytes("memory/peak_allocated_gib") if run.measured else None),
                told(num_bytes, run.predicted_bytes),
                told(signed_percent, run.prediction_error_pct),
            ]
        )
    return table(["arm", "batch", "outcome", "peak", "predicted", "error"], rows)


def _series(runs: Sequence[Run]) -> list[Line]:
    series = []
    for arm in dict.fromkeys(run.arm for run in runs):
        own = [run for run in runs if run.arm == arm]
        measured = [
            (float(run.record.identity.batch_size), peak)
            for run in own
            if run.measured and (peak := run.num_bytes("memory/peak_allocated_gib"))
        ]
        predicted = [
            (float(run.record.identity.batch_size), float(run.predicted_bytes)) for run in own if run.predicted_bytes
        ]
        if measured:
            series.append(Line(arm, measured, MODE_COLOURS[arm], dots=True))
        if predicted:
            series.append(Line(f"{arm}, predicted", predicted, MODE_COLOURS[arm]))
    return series
