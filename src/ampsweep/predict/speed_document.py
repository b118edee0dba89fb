"""Predicted speeds on GPUs as a document."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ampsweep.config.modes import report_order
from ampsweep.config.schema import component_name
from ampsweep.predict.gpu_comparison import ArmOnDevice, GpuSpeeds, cheapest, fastest
from ampsweep.predict.prediction_document import in_doubt, workload_title
from ampsweep.predict.target_device import CONTEXT_GIB
from ampsweep.report.data_formats import as_rows
from ampsweep.report.document import Document, Item, Prose, Section, items_of
from ampsweep.report.figure import Figure, Json, axis, scatter, whiskers
from ampsweep.report.palette import ArmStyle, arm_styles
from ampsweep.report.tables import Cell, Column, Columns, Row, Table, count_cell, table_of, text_column
from ampsweep.speed.step_time import PredictedRange
from ampsweep.text import GIB, listed, milliseconds, num_bytes, number, ratio

_FIGURES: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "step_ms": ("step", milliseconds),
    "samples_per_sec": ("samples/s", number),
    "tokens_per_sec": ("tokens/s", number),
    "speedup_over_fp32": ("over fp32", ratio),
    "speedup_over_tf32": ("over tf32", ratio),
    "cost_per_million_samples": ("cost of a million samples", number),
    "cost_per_million_tokens": ("cost of a million tokens", number),
    "cost_of_training": ("cost of {steps} steps", number),
    "largest_samples_per_sec": ("samples/s there", number),
    "largest_tokens_per_sec": ("tokens/s there", number),
}
"""Title and text of the figures of `ArmOnDevice`."""


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
    every = [arm for gpu in gpus for arm in gpu.arms]
    unsupported = items_of(item for gpu in gpus for item in _lacking(gpu))
    if not every:
        return Section(kind="card", blocks=tuple(unsupported))
    return Section(
        title=workload_title(every[0].prediction),
        kind="card",
        blocks=(
            Prose(_headline(gpus), "headline"),
            _table("best_modes", [best for gpu in gpus if (best := gpu.best)], "best mode"),
            *items_of(Item(_why(gpu), gpu.gpu.name) for gpu in gpus),
            Section(blocks=(_chart(gpus, styles),), on_screen=False),
            _throughputs(gpus),
            *unsupported,
            *(Prose(sentence, "note") for sentence in _notes(every)),
            Section(title="Every GPU and mode", blocks=(_table("gpu_modes", every, "mode"),), folded=True),
        ),
    )


def _headline(gpus: Sequence[GpuSpeeds]) -> str:
    """The cheapest and the fastest, each in the best mode of its GPU."""
    quick, cheap = fastest(gpus), cheapest(gpus)
    if quick is None:
        return "It fits on none of these GPUs in any of these modes."
    unit = quick.throughput.removesuffix("_per_sec")
    gain, text = quick.figures.get("speedup_over_fp32"), f"fastest: {quick.gpu.name} in {quick.arm}, "
    text += f"{number(quick.figures[quick.throughput].expected)} {unit}/s"
    if gain is not None:
        text += f", {number(gain.expected, 2)}x fp32 ({number(gain.low, 2)}-{number(gain.high, 2)}x)"
    if cheap is None:
        return f"F{text[1:]}."
    cost = number(cheap.figures[f"cost_per_million_{unit}"].expected)
    return f"Cheapest: {cheap.gpu.name} in {cheap.arm}, {cost} per million {unit}; {text}."


def _why(gpu: GpuSpeeds) -> str:
    """Why the best mode of a GPU is the best, or that none fits."""
    best, quick = gpu.best, gpu.fastest
    if not gpu.arms:
        return "none of the modes is possible"
    if best is None or quick is None:
        size, arm = max((arm.largest_batch or 0, arm.arm) for arm in gpu.arms)
        return f"no mode fits{f'; {arm} does up to batch {size}' if size else ''}"
    same = listed(arm.arm for arm in gpu.alike[1:])
    why = f"{best.arm} is {f'as fast as {same}' if same else 'the fastest that fits'}"
    if quick in gpu.alike:
        return why
    return (
        f"{why}, with float32 weights; {quick.arm}, without, would be {number(best.step_ms / quick.step_ms)}x as fast"
    )


def _lacking(gpu: GpuSpeeds) -> Iterator[Item]:
    """The modes that are not possible on a GPU, with the reason."""
    for reason in dict.fromkeys(gpu.unsupported.values()):
        arms = ", ".join(arm for arm, text in gpu.unsupported.items() if text == reason)
        yield Item(f"without {arms}: {reason}", gpu.gpu.name)


def _notes(every: Sequence[ArmOnDevice]) -> Iterator[str]:
    first = every[0].prediction
    if waiting := [arm for arm in every if arm.bound == "data"]:
        arm = max(waiting, key=lambda arm: arm.work.reading_ms / arm.step_ms)
        names = listed(dict.fromkeys(arm.gpu.name for arm in waiting))
        yield (
            f"Reading the batches of a step takes {milliseconds(arm.reading_ms)} on this machine's CPU, longer than a "
            f"step on {names}: data.num_workers={int(arm.work.reading_ms / arm.step_ms) + 1} would keep up."
        )
    if measured := dict.fromkeys(arm.gpu.name for arm in every if arm.time.is_calibrated):
        yield f"Calibrated by measurements: {listed(measured)}."
    if wide := dict.fromkeys(arm.gpu.name for arm in every if arm.time.is_extrapolated):
        yield f"Nothing was fitted to chips of this kind, hence the wide ranges: {listed(wide)}."
    if first.config.trainer.compile:
        yield "Memory is that of the eager step; a compiled step (trainer.compile=true) often takes less."
    if first.world_size > 1:
        yield f"Speeds and costs are those of {first.world_size} GPUs, joined by the link of a usual server."
    yield "Ranges hold nine of ten measurements. Speeds are those of steps after warm-up, without evaluations."
    yield f"A step fits if it takes no more than the GPU's memory less {CONTEXT_GIB} GiB for the driver's context."
    yield from in_doubt([operator for arm in every for operator in arm.prediction.memory.unvouched])


def _table(key: str, arms: Sequence[ArmOnDevice], mode: str) -> Table:
    """A row for each of the arms; figures are per token where the data has tokens."""
    hidden = "samples" if any(arm.throughput == "tokens_per_sec" for arm in arms) else "tokens"

    def column(name: str) -> tuple[Column, Callable[[ArmOnDevice], Cell]]:
        title, text = _FIGURES[name]
        title = title.format(steps=f"{arms[0].work.num_steps:,}" if arms else "")
        look = Column(title, name, numeric=True, optional=True, data_only=hidden in name)
        return look, lambda arm: _range_cell(arm.figures.get(name), text)

    def peak(arm: ArmOnDevice) -> Cell:
        taken = arm.prediction.memory.total_bytes
        room = f"of {num_bytes(arm.gpu.memory_gib * GIB)}" if arm.work.fits else "no room"
        return Cell(num_bytes(taken), taken, detail=room)

    def size(arm: ArmOnDevice) -> Cell:
        return Cell() if arm.largest_batch is None else count_cell(arm.largest_batch)

    *figures, samples, tokens = map(column, _FIGURES)
    columns: Columns[ArmOnDevice] = [
        text_column("GPU", lambda arm: arm.gpu.name, key="gpu"),
        text_column(mode, lambda arm: arm.arm, key="arm"),
        *figures,
        text_column("bound by", lambda arm: arm.bound, key="bound"),
        (Column("peak memory", "peak_memory_bytes", numeric=True), peak),
        (Column("fits", data_only=True), lambda arm: Cell(value=arm.work.fits)),
        (Column("largest batch", "largest_batch", numeric=True, optional=True), size),
        samples,
        tokens,
        (Column("extrapolated", "is_extrapolated", data_only=True), lambda arm: Cell(value=arm.time.is_extrapolated)),
        (Column("reading", "reading_ms", data_only=True), lambda arm: Cell(value=arm.reading_ms)),
    ]
    return table_of(key, columns, arms, lambda arm: arm.arm)


def _range_cell(found: PredictedRange | None, text: Callable[[float], str]) -> Cell:
    if found is None:
        return Cell()
    return Cell(text(found.expected), found.expected, found.low, found.high, f"[{text(found.low)}, {text(found.high)}]")


def _throughputs(gpus: Sequence[GpuSpeeds]) -> Table:
    """A row for each GPU, a column for each mode."""
    every = [arm for gpu in gpus for arm in gpu.arms]
    names, key = sorted({arm.arm for arm in every}, key=report_order), every[0].throughput
    rows = []
    for gpu in gpus:
        cells = dict.fromkeys(names, Cell())
        for arm in gpu.arms:
            over, speed = arm.figures.get("speedup_over_fp32"), arm.figures[key].expected
            found = Cell(number(speed), speed, detail="" if over is None else f"{ratio(over.expected)} fp32")
            cells[arm.arm] = found if arm.work.fits else Cell("no room", shown_only=True)
        rows.append(Row((Cell(gpu.gpu.name), *cells.values())))
    columns = (Column(_FIGURES[key][0], "gpu"), *(Column(name, f"{name}_{key}", numeric=True) for name in names))
    return Table(key="throughput", columns=columns, rows=tuple(rows))


def _chart(gpus: Sequence[GpuSpeeds], styles: Mapping[str, ArmStyle]) -> Figure:
    """For each GPU a dot for each mode that fits, with its range, one below the other."""
    fitting = [(row, arm) for row, gpu in enumerate(gpus) for arm in gpu.arms if arm.work.fits]
    shown = [name for name in styles if any(arm.arm == name for _, arm in fitting)]
    traces: list[Json] = []
    for place, name in enumerate(shown):
        own, look = [(row, arm) for row, arm in fitting if arm.arm == name], styles[name]
        ranges = [arm.figures[arm.throughput] for _, arm in own]
        x, ends = [each.expected for each in ranges], [(each.low, each.high) for each in ranges]
        y = [row + 0.8 * ((place + 0.5) / len(shown) - 0.5) for row, _ in own]
        hover = [
            f"{arm.gpu.name}: {number(at)} [{number(low)}, {number(high)}]"
            for (_, arm), at, (low, high) in zip(own, x, ends, strict=True)
        ]
        bars = whiskers("x", x, ends, look.colour)
        traces.append(scatter(name, x, y, look.colour, symbol=look.symbol, hover=hover, meta={"arm": name}, **bars))
    unit = next((arm.throughput.removesuffix("_per_sec") for _, arm in fitting), "samples")
    return Figure(
        key="speed-by-gpu",
        title="Speed by GPU and mode",
        question="How fast is which GPU, in which mode?",
        note="To the right is faster; the axis is logarithmic. Whiskers: nine of ten measurements. Modes without room "
        "are left out.",
        wide=True,
        traces=traces,
        x=axis("speed", f"{unit}/s", log=True),
        y=axis(range=(len(gpus) - 0.5, -0.5), ticks={row: gpu.gpu.name for row, gpu in enumerate(gpus)}),
        legend=True,
        height=150 + len(gpus) * max(40, 12 * len(shown)),
    )


def _data(gpus: Sequence[GpuSpeeds]) -> dict[str, Any]:
    every = [arm for gpu in gpus for arm in gpu.arms]
    answers: dict[str, Any] = {}
    if every:
        of, config = every[0].prediction, every[0].prediction.config
        answers = {"model": component_name(config.model), "data": component_name(config.data)}
        answers |= {"num_parameters": of.model_size, "batch_size": config.data["batch_size"]}
        answers |= {"world_size": of.world_size, "num_steps": every[0].work.num_steps}
        answers["sentences"] = [_headline(gpus), *_notes(every)]
    for key, found in (("fastest", fastest(gpus)), ("cheapest", cheapest(gpus))):
        answers[key] = None if found is None else {"gpu": found.gpu.name, "arm": found.arm}
    facts = [
        {"gpu": gpu.gpu.name, "memory_gib": gpu.gpu.memory_gib, "price_per_hour": gpu.price, "why": _why(gpu)}
        | {"best": None if gpu.best is None else gpu.best.arm, "unsupported": gpu.unsupported}
        for gpu in gpus
    ]
    return answers | {"gpus": facts, "modes": as_rows(_table("gpu_modes", every, "mode")) if every else []}
