"""Predicted speeds on GPUs as a document."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ampsweep.config.modes import report_order
from ampsweep.config.schema import component_name
from ampsweep.predict.gpu_comparison import ArmOnDevice, GpuSpeeds, cheapest, fastest
from ampsweep.predict.prediction_document import in_doubt, workload_title
from ampsweep.predict.target_device import CONTEXT_GIB
from ampsweep.report.document import Document, Item, Prose, Section, items_of
from ampsweep.report.figure import Figure, Json, axis, scatter, whiskers
from ampsweep.report.palette import ArmStyle, arm_styles
from ampsweep.report.tables import Cell, Column, Columns, Row, Table, count_cell, table_of, text_column
from ampsweep.speed.step_time import PredictedRange
from ampsweep.text import GIB, listed, milliseconds, num_bytes, number, ratio

Figures = Mapping[str, tuple[str, Callable[[float], str], Callable[[ArmOnDevice], PredictedRange | None]]]
_FIGURES: Final[Figures] = {
    "step_ms": ("step", milliseconds, lambda of: of.speed.time.step_ms),
    "samples_per_sec": ("samples/s", number, lambda of: of.speed.samples_per_sec),
    "tokens_per_sec": ("tokens/s", number, lambda of: of.speed.tokens_per_sec),
    "speedup_over_fp32": ("over fp32", ratio, lambda of: of.speedup("fp32")),
    "speedup_over_tf32": ("over tf32", ratio, lambda of: of.speedup("tf32")),
    "cost_per_million_samples": ("cost of a million samples", number, lambda of: of.cost_per_million_samples),
    "cost_per_million_tokens": ("cost of a million tokens", number, lambda of: of.cost_per_million_tokens),
    "cost_of_training": ("cost of {steps}", number, lambda of: of.cost_of_training),
    "largest_samples_per_sec": (
        "samples/s there",
        number,
        lambda of: None if of.at_largest is None else of.at_largest.samples_per_sec,
    ),
    "largest_tokens_per_sec": (
        "tokens/s there",
        number,
        lambda of: None if of.at_largest is None else of.at_largest.tokens_per_sec,
    ),
}
"""Key -> title, text and value of what is predicted with a range; the last ones at the largest batch that fits."""


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
            _throughput(gpus),
            *unsupported,
            *(Prose(sentence, "note") for sentence in _notes(every)),
            Section(title="Speed by GPU and mode", blocks=(_chart(gpus, styles),), on_screen=False),
            Section(title="Every GPU and mode", blocks=(_table("gpu_modes", every, "mode"),), folded=True),
        ),
    )


def _headline(gpus: Sequence[GpuSpeeds]) -> str:
    """The cheapest and the fastest, each in the best mode of its GPU."""
    found, quick = [], fastest(gpus)
    if quick is None:
        return "It fits on none of these GPUs in any of these modes."
    if (cheap := cheapest(gpus)) is not None:
        unit, cost = ("tokens", cheap.cost_per_million_tokens) if _has_tokens(cheap) else ("samples", None)
        cost = cost or cheap.cost_per_million_samples
        assert cost is not None, "only what has a price is the cheapest"
        found.append(f"Cheapest: {cheap.gpu.name} in {cheap.arm}, {number(cost.expected)} per million {unit}; ")
    gain = quick.speedup("fp32")
    speed = f"{number(_throughput_of(quick).expected)} {'tokens/s' if _has_tokens(quick) else 'samples/s'}"
    over = "" if gain is None else f", {number(gain.expected, 2)}x fp32 ({number(gain.low, 2)}-{number(gain.high, 2)}x)"
    found.append(f"{'fastest' if found else 'Fastest'}: {quick.gpu.name} in {quick.arm}, {speed}{over}.")
    return "".join(found)


def _why(gpu: GpuSpeeds) -> str:
    """Why the best mode of a GPU is the best, or that none fits."""
    best, lighter = gpu.best, gpu.lighter
    if best is None:
        size, arm = max(((_largest(arm) or 0, arm.arm) for arm in gpu.arms), default=(0, ""))
        return f"no mode fits{f'; {arm} does up to batch {size}' if size else ''}"
    same = [arm.arm for arm in gpu.as_fast_as(best)]
    why = f"as fast as {listed(same)}" if same else "the fastest that fits"
    if lighter is None:
        return f"{best.arm} is {why}"
    gain = best.speed.time.step_ms.expected / lighter.speed.time.step_ms.expected
    return f"{best.arm} is {why}, with float32 weights; {lighter.arm}, without, would be {number(gain)}x as fast"


def _lacking(gpu: GpuSpeeds) -> Iterator[Item]:
    """The modes that are not possible on a GPU, with the reason."""
    for reason in dict.fromkeys(gpu.unsupported.values()):
        arms = ", ".join(arm for arm, text in gpu.unsupported.items() if text == reason)
        yield Item(f"without {arms}: {reason}", gpu.gpu.name)


def _notes(every: Sequence[ArmOnDevice]) -> Iterator[str]:
    first = every[0].prediction
    if waiting := [arm for arm in every if arm.bound == "data"]:
        arm = max(waiting, key=lambda arm: arm.work.reading_ms / arm.speed.time.step_ms.expected)
        num_workers = int(arm.work.reading_ms / arm.speed.time.step_ms.expected) + 1
        names = listed(dict.fromkeys(arm.gpu.name for arm in waiting))
        yield (
            f"Reading the batches of a step takes {milliseconds(arm.reading_ms)} on this machine's CPU, longer than a "
            f"step on {names}: data.num_workers={num_workers} would keep up."
        )
    if wide := dict.fromkeys(arm.gpu.name for arm in every if arm.speed.time.is_extrapolated):
        yield f"Ranges are wide beyond the GPUs and sizes that the model was fitted to: {listed(wide)}."
    if first.config.trainer.compile:
        yield "Predicted is the eager step; a compiled step (trainer.compile=true) takes less time and memory."
    if first.world_size > 1:
        yield f"Speeds and costs are those of {first.world_size} GPUs, joined by the link of a usual server."
    yield "Ranges hold nine of ten measurements. Speeds are those of steps after warm-up, without evaluations."
    yield f"A step fits if it takes no more than the GPU's memory less {CONTEXT_GIB} GiB for the driver's context."
    yield from in_doubt([operator for arm in every for operator in arm.prediction.memory.unvouched])


def _has_tokens(arm: ArmOnDevice) -> bool:
    return arm.speed.tokens is not None


def _throughput_of(arm: ArmOnDevice) -> PredictedRange:
    return arm.speed.tokens_per_sec or arm.speed.samples_per_sec


def _largest(arm: ArmOnDevice) -> int | None:
    return None if arm.prediction.largest is None else arm.prediction.largest.batch_size


def _table(key: str, arms: Sequence[ArmOnDevice], mode: str) -> Table:
    """A row for each of the arms; figures are per token where the data has tokens."""
    is_hidden = "samples" if any(map(_has_tokens, arms)) else "tokens"

    def column(name: str) -> tuple[Column, Callable[[ArmOnDevice], Cell]]:
        title, text, value = _FIGURES[name]
        title = title.format(steps=f"{arms[0].work.num_steps:,} steps" if arms else "")
        look = Column(title, name, numeric=True, optional=True, data_only=is_hidden in name)
        return look, lambda arm: _range_cell(value(arm), text)

    def size(arm: ArmOnDevice) -> Cell:
        return Cell() if (found := _largest(arm)) is None else count_cell(found)

    *figures, samples, tokens = map(column, _FIGURES)
    columns: Columns[ArmOnDevice] = [
        text_column("GPU", lambda arm: arm.gpu.name, key="gpu"),
        text_column(mode, lambda arm: arm.arm, key="arm"),
        *figures,
        text_column("bound by", lambda arm: arm.bound, key="bound"),
        (Column("peak memory", "peak_memory_bytes", numeric=True), _peak),
        (Column("fits", data_only=True), lambda arm: Cell(value=arm.fits)),
        (Column("largest batch", "largest_batch", numeric=True, optional=True), size),
        samples,
        tokens,
    ]
    return table_of(key, columns, arms, lambda arm: arm.arm)


def _peak(arm: ArmOnDevice) -> Cell:
    room = f"of {num_bytes(arm.gpu.memory_gib * GIB)}" if arm.fits else "no room"
    return Cell(num_bytes(arm.peak), arm.peak, detail=room)


def _range_cell(found: PredictedRange | None, text: Callable[[float], str]) -> Cell:
    if found is None:
        return Cell()
    return Cell(text(found.expected), found.expected, found.low, found.high, f"[{text(found.low)}, {text(found.high)}]")


def _throughput(gpus: Sequence[GpuSpeeds]) -> Table:
    """A row for each GPU, a column for each mode."""
    names = sorted({arm.arm for gpu in gpus for arm in gpu.arms}, key=report_order)
    key = "tokens_per_sec" if any(_has_tokens(arm) for gpu in gpus for arm in gpu.arms) else "samples_per_sec"
    rows = []
    for gpu in gpus:
        cells = dict.fromkeys(names, Cell())
        for arm in gpu.arms:
            speed = _throughput_of(arm)
            gain = "" if (over := arm.speedup("fp32")) is None else f"{ratio(over.expected)} fp32"
            text = Cell(number(speed.expected), speed.expected, detail=gain)
            cells[arm.arm] = text if arm.fits else Cell("no room", shown_only=True)
        rows.append(Row((Cell(gpu.gpu.name), *cells.values())))
    columns = (Column(_FIGURES[key][0], "gpu"), *(Column(name, f"{name}_{key}", numeric=True) for name in names))
    return Table(key="throughput", columns=columns, rows=tuple(rows))


def _chart(gpus: Sequence[GpuSpeeds], styles: Mapping[str, ArmStyle]) -> Figure:
    """For each GPU a dot for each mode that fits, with its range, one below the other."""
    traces: list[Json] = []
    shown = [name for name in styles if any(arm.arm == name and arm.fits for gpu in gpus for arm in gpu.arms)]
    for place, name in enumerate(shown):
        found = [(row, arm) for row, gpu in enumerate(gpus) for arm in gpu.arms if arm.arm == name and arm.fits]
        ranges, look = [_throughput_of(arm) for _, arm in found], styles[name]
        x, ends = [each.expected for each in ranges], [(each.low, each.high) for each in ranges]
        y = [row + 0.8 * ((place + 0.5) / len(shown) - 0.5) for row, _ in found]
        hover = [
            f"{arm.gpu.name}: {_range_cell(each, number).detail}" for (_, arm), each in zip(found, ranges, strict=True)
        ]
        bars = whiskers("x", x, ends, look.colour)
        traces.append(scatter(name, x, y, look.colour, symbol=look.symbol, hover=hover, meta={"arm": name}, **bars))
    unit = "tokens/s" if any(_has_tokens(arm) for gpu in gpus for arm in gpu.arms) else "samples/s"
    return Figure(
        key="speed-by-gpu",
        title="Predicted speed",
        question="Which GPU is how fast, and in which mode?",
        note="To the right is faster; the axis is logarithmic. Whiskers: nine of ten measurements. Modes without room "
        "are left out.",
        wide=True,
        traces=traces,
        x=axis("speed", unit, log=True),
        y=axis(range=(len(gpus) - 0.5, -0.5), ticks={row: gpu.gpu.name for row, gpu in enumerate(gpus)}),
        legend=True,
        height=150 + len(gpus) * max(40, 12 * len(shown)),
    )


def _data(gpus: Sequence[GpuSpeeds]) -> dict[str, Any]:
    quick, cheap = fastest(gpus), cheapest(gpus)
    named = {"fastest": quick, "cheapest": cheap}
    first = next((arm for gpu in gpus for arm in gpu.arms), None)
    facts = {} if first is None else _workload(first)
    sentences = [] if first is None else [_headline(gpus), *_notes([arm for gpu in gpus for arm in gpu.arms])]
    return {
        **facts,
        **{key: None if arm is None else {"gpu": arm.gpu.name, "arm": arm.arm} for key, arm in named.items()},
        "gpus": [
            {
                "gpu": gpu.gpu.name,
                "memory_gib": gpu.gpu.memory_gib,
                "price_per_hour": gpu.price,
                "best": gpu.best and gpu.best.arm,
                "why": _why(gpu),
                "modes": [*map(_arm, gpu.arms)],
                "unsupported": gpu.unsupported,
            }
            for gpu in gpus
        ],
        "sentences": sentences,
    }


def _workload(arm: ArmOnDevice) -> dict[str, Any]:
    config, of = arm.prediction.config, arm.prediction
    names = {"model": component_name(config.model), "data": component_name(config.data)}
    sizes = {"num_parameters": of.model_size, "batch_size": config.data["batch_size"], "world_size": of.world_size}
    return names | sizes | {"num_steps": arm.work.num_steps}


def _arm(arm: ArmOnDevice) -> dict[str, Any]:
    data: dict[str, Any] = {"arm": arm.arm, "fits": arm.fits, "bound": arm.bound}
    for key, (_, _, value) in _FIGURES.items():
        if (found := value(arm)) is not None:
            data |= {key: found.expected, f"{key}_low": found.low, f"{key}_high": found.high}
    rest = {"peak_memory_bytes": arm.peak, "largest_batch": _largest(arm), "reading_ms": arm.reading_ms}
    return data | rest | {"is_extrapolated": arm.speed.time.is_extrapolated}
