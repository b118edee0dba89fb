"""Predicted speeds on GPUs as a document."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ampsweep.config.modes import report_order
from ampsweep.predict.gpu_comparison import ArmSpeed, GpuSpeeds, cheapest, fastest
from ampsweep.predict.prediction_document import in_doubt, workload_title
from ampsweep.predict.target_device import CONTEXT_GIB
from ampsweep.report.data_formats import as_rows
from ampsweep.report.document import Document, Item, Prose, Section, items_of
from ampsweep.report.figure import Figure, axis, scatter, whiskers
from ampsweep.report.palette import ArmStyle, arm_styles
from ampsweep.report.tables import Cell, Column, Columns, Row, Table, count_cell, table_of, text_column, value_cell
from ampsweep.speed.predicted_range import PredictedRange
from ampsweep.text import GIB, listed, milliseconds, num_bytes, number, ratio


def speed_document(workloads: Sequence[Sequence[GpuSpeeds]]) -> Document:
    """The speed of each workload by GPU and mode, what bounds it, what fits, and what it costs."""
    names = {arm.arm for gpus in workloads for gpu in gpus for arm in gpu.arms}
    styles = arm_styles(sorted(names, key=report_order))
    return Document(
        title="Predicted speed",
        sections=tuple(_section(gpus, styles) for gpus in workloads),
        arms=styles,
        data={"schema": 1, "workloads": [*map(_data, workloads)]},
    )


def _section(gpus: Sequence[GpuSpeeds], styles: Mapping[str, ArmStyle]) -> Section:
    every, best = [arm for gpu in gpus for arm in gpu.arms], [arm for gpu in gpus if (arm := gpu.best)]
    return Section(
        title=workload_title(every[0].prediction),
        kind="card",
        blocks=(
            *(Prose(sentence, "headline") for sentence in _answers(gpus)),
            *([_modes("best_modes", best)] if best else []),
            _chart(gpus, styles),
            _throughputs(gpus, styles),
            *items_of(item for gpu in gpus for item in _lacking(gpu)),
            *(Prose(sentence, "note") for sentence in _notes(every)),
            Section(title="Every GPU and mode", blocks=(_modes("gpu_modes", every),), folded=True),
        ),
    )


def _answers(gpus: Sequence[GpuSpeeds]) -> Iterator[str]:
    """The fastest and the cheapest, each in the best mode of its GPU."""
    quick, cheap = fastest(gpus), cheapest(gpus)
    if quick is None:
        yield "It fits on none of these GPUs in any of these modes."
        return
    gain = quick.speedups.get("fp32")
    text = "" if gain is None else f", {ratio(gain.expected)} fp32 ({ratio(gain.low)} to {ratio(gain.high)})"
    yield f"Fastest: {quick.gpu.name} in {quick.arm}, {number(quick.per_sec.expected)} {quick.work.unit}/s{text}."
    if cheap is not None and (cost := cheap.cost_per_million):
        yield f"Cheapest: {cheap.gpu.name} in {cheap.arm}, {number(cost.expected)} per million {cheap.work.unit}."


def _lacking(gpu: GpuSpeeds) -> Iterator[Item]:
    """Modes that are not possible on a GPU, with the reason, and what fits if the configured batch does not."""
    for reason in dict.fromkeys(gpu.unsupported.values()):
        arms = ", ".join(arm for arm, text in gpu.unsupported.items() if text == reason)
        yield Item(f"without {arms}: {reason}", gpu.gpu.name)
    largest = {arm.work.largest: arm.arm for arm in gpu.arms}
    if gpu.best is None and largest:
        yield Item(f"no mode fits; {largest[max(largest)]} does up to batch {max(largest)}", gpu.gpu.name)


def _notes(every: Sequence[ArmSpeed]) -> Iterator[str]:
    if waiting := [arm for arm in every if arm.bound == "data"]:
        yield (
            f"Reading the batches of a step takes {milliseconds(waiting[0].reading_ms)} on this machine's CPU, longer "
            f"than a step on {listed(dict.fromkeys(arm.gpu.name for arm in waiting))}: raise data.num_workers."
        )
    if measured := dict.fromkeys(arm.gpu.name for arm in every if arm.time.is_calibrated):
        yield f"Calibrated by measurements: {listed(measured)}."
    if wide := dict.fromkeys(arm.gpu.name for arm in every if arm.time.is_extrapolated):
        yield f"Nothing was fitted to chips of this kind, hence the wide ranges: {listed(wide)}."
    if every[0].prediction.config.trainer.compile:
        yield "Memory is that of the eager step; a compiled step (trainer.compile=true) often takes less."
    yield (
        "Ranges hold nine of ten measurements, of steps after warm-up, without evaluations. A step fits if it takes no "
        f"more than the GPU's memory less {CONTEXT_GIB} GiB for the driver's context."
    )
    yield from in_doubt([operator for arm in every for operator in arm.prediction.memory.unvouched])


def _modes(key: str, arms: Sequence[ArmSpeed]) -> Table:
    """A row for each of the arms."""
    unit, steps = arms[0].work.unit, arms[0].work.num_steps

    def ranges(
        title: str, key: str, text: Callable[[float], str], found: Callable[[ArmSpeed], PredictedRange | None]
    ) -> tuple[Column, Callable[[ArmSpeed], Cell]]:
        return Column(title, key, numeric=True, optional=True), lambda arm: _cell(found(arm), text)

    def peak(arm: ArmSpeed) -> Cell:
        room = f"of {num_bytes(arm.gpu.memory_gib * GIB)}" if arm.fits else "no room"
        return value_cell(arm.prediction.memory.total_bytes, num_bytes, room)

    columns: Columns[ArmSpeed] = [
        text_column("GPU", lambda arm: arm.gpu.name, key="gpu"),
        text_column("mode", lambda arm: arm.arm, key="arm"),
        ranges("step", "step_ms", milliseconds, lambda arm: arm.time.step_ms),
        ranges(f"{unit}/s", f"{unit}_per_sec", number, lambda arm: arm.per_sec),
        ranges("over fp32", "speedup_over_fp32", ratio, lambda arm: arm.speedups.get("fp32")),
        ranges("over tf32", "speedup_over_tf32", ratio, lambda arm: arm.speedups.get("tf32")),
        ranges(f"cost of a million {unit}", f"cost_per_million_{unit}", number, lambda arm: arm.cost_per_million),
        ranges(f"cost of {steps:,} steps", "cost_of_training", number, lambda arm: arm.cost(steps * arm.step_ms)),
        text_column("bound by", lambda arm: arm.bound, key="bound"),
        (Column("peak memory", "peak_memory_bytes", numeric=True), peak),
        (Column("fits", data_only=True), lambda arm: Cell(value=arm.fits)),
        (Column("largest batch", "largest_batch", numeric=True), lambda arm: count_cell(arm.work.largest)),
        ranges(f"{unit}/s there", f"largest_{unit}_per_sec", number, lambda arm: arm.largest_per_sec),
        (Column("extrapolated", "is_extrapolated", data_only=True), lambda arm: Cell(value=arm.time.is_extrapolated)),
        (Column("reading", "reading_ms", data_only=True), lambda arm: Cell(value=arm.reading_ms)),
    ]
    return table_of(key, columns, arms, lambda arm: arm.arm)


def _cell(found: PredictedRange | None, text: Callable[[float], str]) -> Cell:
    if found is None:
        return Cell()
    return Cell(text(found.expected), found.expected, found.low, found.high, f"[{text(found.low)}, {text(found.high)}]")


def _throughputs(gpus: Sequence[GpuSpeeds], styles: Mapping[str, ArmStyle]) -> Table:
    """A row for each GPU, a column for each mode."""

    def cell(arm: ArmSpeed) -> Cell:
        over, speed = arm.speedups.get("fp32"), arm.per_sec.expected
        if not arm.fits:
            return Cell("no room", shown_only=True)
        return Cell(number(speed), speed, detail="" if over is None else f"{ratio(over.expected)} fp32")

    unit, rows = next(arm.work.unit for gpu in gpus for arm in gpu.arms), []
    for gpu in gpus:
        cells = dict.fromkeys(styles, Cell()) | {arm.arm: cell(arm) for arm in gpu.arms}
        rows.append(Row((Cell(gpu.gpu.name), *cells.values())))
    modes = [Column(name, f"{name}_{unit}_per_sec", numeric=True, optional=True) for name in styles]
    return Table(key="throughput", columns=(Column(f"{unit}/s", "gpu"), *modes), rows=tuple(rows))


def _chart(gpus: Sequence[GpuSpeeds], styles: Mapping[str, ArmStyle]) -> Figure:
    """For each GPU a dot for each mode that fits, with its range, one below the other."""
    fitting = [(row, arm) for row, gpu in enumerate(gpus) for arm in gpu.arms if arm.fits]
    traces = []
    for place, (name, look) in enumerate(styles.items()):
        own = [(row, arm) for row, arm in fitting if arm.arm == name]
        x = [arm.per_sec.expected for _, arm in own]
        y = [row + 0.8 * ((place + 0.5) / len(styles) - 0.5) for row, _ in own]
        hover = [f"{arm.gpu.name}: {number(arm.per_sec.low)} to {number(arm.per_sec.high)}" for _, arm in own]
        ends = whiskers("x", x, [(arm.per_sec.low, arm.per_sec.high) for _, arm in own], look.colour)
        traces.append(scatter(name, x, y, look.colour, symbol=look.symbol, hover=hover, meta={"arm": name}, **ends))
    return Figure(
        key="speed-by-gpu",
        title="Speed by GPU and mode",
        question="How fast is which GPU, in which mode?",
        note="To the right is faster; the axis is logarithmic. Whiskers: nine of ten measurements.",
        wide=True,
        traces=traces,
        x=axis("speed", f"{fitting[0][1].work.unit if fitting else 'samples'}/s", log=True),
        y=axis(range=(len(gpus) - 0.5, -0.5), ticks={row: gpu.gpu.name for row, gpu in enumerate(gpus)}),
        legend=True,
        height=150 + len(gpus) * max(40, 12 * len(styles)),
    )


def _data(gpus: Sequence[GpuSpeeds]) -> dict[str, Any]:
    every = [arm for gpu in gpus for arm in gpu.arms]
    facts = [(gpu.gpu.name, gpu.best and gpu.best.arm, gpu.unsupported) for gpu in gpus]
    found = {"fastest": fastest(gpus), "cheapest": cheapest(gpus)}
    return {
        "workload": workload_title(every[0].prediction),
        "num_steps": every[0].work.num_steps,
        "sentences": [*_answers(gpus), *_notes(every)],
        **{key: arm and {"gpu": arm.gpu.name, "arm": arm.arm} for key, arm in found.items()},
        "gpus": [{"gpu": name, "best": best, "unsupported": why} for name, best, why in facts],
        "modes": as_rows(_modes("gpu_modes", every)),
    }
