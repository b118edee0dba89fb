"""Predictions of memory as a document."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from ampsweep.config.schema import component_name
from ampsweep.predict.step_memory import StepMemory
from ampsweep.predict.workload_prediction import ArmPrediction, WorkloadPrediction
from ampsweep.records.sections import Doubt, UnvouchedOperator
from ampsweep.report.document import Document, Item, Items, Prose, Section
from ampsweep.report.palette import arm_styles
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.text import listed, num_bytes

_UNLESS: Final = ", unless what is named below takes more than predicted"
_DOUBTS: Final[dict[Doubt, str]] = {
    "custom": "not torch's own, so that only its author knows what its kernel takes",
    "differs": "in this version of torch its kernel takes other memory than is predicted",
    "workspace": "the library behind it chooses a workspace while it runs, which the peak does not have",
    "varies": "only one size is predicted: that of step 2, or of the step with the run's peak",
}


def prediction_document(predictions: Sequence[WorkloadPrediction]) -> Document:
    """The memory of each workload by category and by batch size or number of ranks, and the answers."""
    return Document(
        title="Predicted memory",
        sections=tuple(map(_section, predictions)),
        arms=arm_styles(arm.arm for prediction in predictions for arm in prediction.arms),
        data={"schema": 2, "workloads": [*map(_data, predictions)]},
    )


def _section(of: WorkloadPrediction) -> Section:
    tables = [_categories(of), _curves(of)] if of.arms else []
    unsupported = tuple(Item(reason, arm=arm) for arm, reason in of.unsupported.items())
    items = [Items(unsupported)] if unsupported else []
    prose = (*map(Prose, _sentences(of)), *(Prose(sentence, "note") for sentence in _reservations(of)))
    title = f"{workload_title(of.arms[0])}: predicted for {of.target.name}" if of.arms else ""
    return Section(title=title, kind="card", blocks=(*tables, *items, *prose))


def _sentences(of: WorkloadPrediction) -> Iterator[str]:
    """The answers, and notes on emulated modes and on operators in doubt."""
    if of.arms:
        yield from _answers(of)
    for arm in of.arms:
        if arm.emulated is not None:
            emulation = f"the emulation, which multiplies float32 copies: {arm.emulated}"
            yield f"{arm.arm} is emulated, and its bytes are those of {emulation}."
    yield from in_doubt(of.unvouched)


def in_doubt(operators: Sequence[UnvouchedOperator]) -> Iterator[str]:
    """Sentences that name the operators whose memory may differ, each once, with the reasons."""
    called = {(operator.name, operator.doubt): operator for operator in operators}
    for doubt, reason in _DOUBTS.items():
        of_doubt = [called[key] for key in sorted(called) if key[1] == doubt]
        callers = [f" in {listed(operator.modules, limit=2)}" if operator.modules else "" for operator in of_doubt]
        named = [operator.name + modules for operator, modules in zip(of_doubt, callers, strict=True)]
        if named:
            yield f"Not vouched for: {', '.join(named)}: {reason}."


def _answers(of: WorkloadPrediction) -> Iterator[str]:
    """The answers in plain English, with a condition if there are doubts about operators."""
    arms, memory_gib = of.arms, of.arms[0].config.predict.memory_gib
    doubts = {operator.doubt for operator in of.unvouched}
    if ranks := [arm for arm in arms if arm.fewest is not None]:
        numbers = (f"{a.arm} from {a.fewest} on" if a.fewest else f"{a.arm} on no number of them" for a in ranks)
        unless = _UNLESS if doubts else ""
        yield f"With {memory_gib:g} GiB on each GPU, of 2, 4, 8 and so on{unless}: {', '.join(numbers)}."
        return
    if memory_gib is not None and any(arm.largest is not None for arm in arms):
        yield f"On {memory_gib:g} GiB{_UNLESS if doubts else ''}: {', '.join(_fits(arms))}."
    if of.baseline is None:
        return
    unless = _UNLESS if doubts - {"workspace"} else ""
    for batch_size in sorted({arm.saves_from for arm in arms if arm.saves_from is not None}):
        saving = [arm.arm for arm in arms if arm.saves_from == batch_size]
        yield f"{_that_save(saving)} memory from batch {batch_size} on{unless}."
    if others := [arm.arm for arm in arms if arm.saves_nothing]:
        yield f"{_that_save(others)} no memory{unless}."


def _fits(arms: Sequence[ArmPrediction]) -> Iterator[str]:
    unit = "batch "
    for arm in arms:
        if arm.largest is None:
            continue
        size = arm.largest.batch_size
        if size == 0:
            yield f"{arm.arm} not even one item"
        elif arm.largest.is_all_the_data:
            yield f"{arm.arm} every batch the data has (up to {size})"
        elif arm.largest.ended_search:
            yield f"{arm.arm} beyond batch {size}"
        else:
            yield f"{arm.arm} up to {unit}{size}"
            unit = ""


def _that_save(names: Sequence[str]) -> str:
    return f"{names[0]} saves" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} save"


def _reservations(of: WorkloadPrediction) -> Iterator[str]:
    if any(arm.config.trainer.compile for arm in of.arms):
        yield "Predicted is the eager step; a compiled step (trainer.compile=true) takes other memory, often less."
    if any(arm.world_size > 1 for arm in of.arms):
        yield "All figures are those of the fullest rank, the first, without NCCL's own buffers."
    elif any(arm.interpolation is None for arm in of.arms):
        yield "Every batch size was traced: sizes do not grow evenly with the batch."
    if of.target.kind == "cuda":
        yield (
            "peak is the value of torch.cuda.max_memory_allocated, with cuBLAS workspaces and without the driver's "
            "context (about 0.5 GiB)."
        )
    else:
        yield "peak is the bytes of tensors, without kernels' own buffers on the CPU."


def workload_title(arm: ArmPrediction) -> str:
    config, trainer, strategy = arm.config, arm.config.trainer, arm.config.parallel.strategy
    facts = [
        f"model {component_name(config.model)} ({arm.model_size:,} parameters)",
        f"data {component_name(config.data)}",
        component_name(config.optimizer),
        f"batch_size {config.data['batch_size']}",
        f"seq_len {config.data['seq_len']}" if "seq_len" in config.data else "",
        f"grad_accum_steps {trainer.grad_accum_steps}" if trainer.grad_accum_steps > 1 else "",
        "activation_checkpointing" if trainer.activation_checkpointing else "",
        f"{strategy} on {arm.world_size} ranks" if strategy != "single" else "",
    ]
    return ", ".join(filter(None, facts))


def _categories(of: WorkloadPrediction) -> Table:
    used = [key for key in of.arms[0].memory.peak if any(arm.memory.peak[key] for arm in of.arms)]
    columns = ["peak", "reserved", *used]
    rows = [[arm.memory.total_bytes, arm.memory.reserved_bytes, *map(arm.memory.peak.get, used)] for arm in of.arms]
    return _table("categories", "arm", columns, of, rows)


def _curves(of: WorkloadPrediction) -> Table:
    """The peak by batch size, or by number of ranks."""
    has_ranks = of.arms[0].world_size > 1
    curves = [arm.by_world_size if has_ranks else {point.batch_size: point for point in arm.curve} for arm in of.arms]
    numbers = sorted({number for curve in curves for number in curve}) if has_ranks else [*curves[0]]
    rows = [[curve[number].total_bytes if number in curve else None for number in numbers] for curve in curves]
    key, first = ("ranks", "ranks") if has_ranks else ("batches", "peak at batch")
    return _table(key, first, [*map(str, numbers)], of, rows)


def _table(
    key: str, first: str, names: Sequence[str], of: WorkloadPrediction, values: Sequence[Sequence[int | None]]
) -> Table:
    columns = [Column(name.replace("_", " "), f"{name}_bytes", numeric=True, optional=True) for name in names]
    rows = []
    for arm, sizes in zip(of.arms, values, strict=True):
        cells = (Cell() if size is None else Cell(num_bytes(size), size) for size in sizes)
        rows.append(Row((Cell(arm.arm), *cells), arm=arm.arm))
    return Table(key=key, columns=(Column(first, "arm"), *columns), rows=tuple(rows))


def _data(of: WorkloadPrediction) -> dict[str, Any]:
    target = of.target
    cuda = {"capability": list(target.capability), "workspace_bytes": sum(target.workspaces)}
    return {
        "target": target.kind,
        **(cuda if target.kind == "cuda" else {}),
        "baseline": of.baseline,
        "modes": [*map(_arm, of.arms)],
        "unsupported": of.unsupported,
        "sentences": [*_sentences(of)],
    }


def _arm(arm: ArmPrediction) -> dict[str, Any]:
    config = arm.config
    data = {
        "arm": arm.arm,
        "model": component_name(config.model),
        "data": component_name(config.data),
        "num_parameters": arm.model_size,
        **_memory(arm.memory),
        "memory_gib": config.predict.memory_gib,
        "largest_batch": None if arm.largest is None else arm.largest.batch_size,
        "saves_from_batch": arm.saves_from,
        "unvouched": [*map(asdict, arm.memory.unvouched)],
        "curve": [_memory(memory) for memory in arm.curve],
    }
    if config.parallel.strategy == "single":
        return data
    return data | {
        "parallel": config.parallel.strategy,
        "world_size": arm.world_size,
        "by_world_size": {str(number): _memory(memory) for number, memory in arm.by_world_size.items()},
        "smallest_world_size": arm.fewest or None,
    }


def _memory(memory: StepMemory) -> dict[str, Any]:
    return {key: value for key, value in asdict(memory).items() if value is not None and key != "unvouched"}
