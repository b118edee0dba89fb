"""Predictions of memory as a document."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict
from typing import Any, Final

from ampsweep.analysis.float8_layers import emulated_memory
from ampsweep.analysis.recorded import unvouched
from ampsweep.config.schema import component_name
from ampsweep.predict.step_memory import StepMemory
from ampsweep.predict.workload_prediction import ArmPrediction, WorkloadPrediction
from ampsweep.record.parts import Doubt
from ampsweep.report.document import Document, Item, Items, Prose, Section
from ampsweep.report.palette import arm_styles
from ampsweep.report.tables import Cell, Column, Row, Table
from ampsweep.text import num_bytes

_UNLESS: Final = ", unless what is named below takes more than predicted"


def prediction_document(predictions: Sequence[WorkloadPrediction]) -> Document:
    """The memory of each workload by category, its growth with the batch or the ranks, and the answers."""
    return Document(
        title="Predicted memory",
        sections=tuple(map(_section, predictions)),
        arms=arm_styles(arm.arm for one in predictions for arm in one.arms),
        data={"schema": 2, "workloads": [_data(one) for one in predictions]},
    )


def _section(of: WorkloadPrediction) -> Section:
    tables = [_categories(of), _curves(of) if of.arms[0].world_size == 1 else _ranks(of)] if of.arms else []
    unsupported = tuple(Item(reason, arm=arm) for arm, reason in of.unsupported.items())
    return Section(
        title=_title(of) if of.arms else "",
        kind="card",
        blocks=(
            *tables,
            *([Items(unsupported)] if unsupported else []),
            *map(Prose, _sentences(of)),
            *(Prose(sentence, "note") for sentence in _reservations(of)),
        ),
    )


def _sentences(of: WorkloadPrediction) -> Iterator[str]:
    """Lines on the answers, on what the target emulates, and on what is not vouched for."""
    if of.arms:
        doubts = {one.doubt for one in of.unvouched}
        yield from _answers(of.arms, of.baseline, of.arms[0].config.predict.memory_gib, doubts)
    for arm in of.arms:
        if arm.emulated is not None:
            yield emulated_memory(arm.arm, arm.emulated)
    yield from unvouched(of.unvouched)


def _answers(
    arms: Sequence[ArmPrediction], baseline: str | None, memory_gib: float | None, doubts: Set[Doubt]
) -> Iterator[str]:
    """The answers in plain English: on a condition, which they name, where there are `doubts` about operators.

    `baseline` is None where there is none to compare with.
    """
    if ranks := [arm for arm in arms if arm.fewest is not None]:
        unless = _UNLESS if doubts else ""
        yield f"With {memory_gib:g} GiB on each GPU, of 2, 4, 8 and so on{unless}: {', '.join(_numbers(ranks))}."
        return
    if memory_gib is not None and any(arm.largest is not None for arm in arms):
        yield f"On {memory_gib:g} GiB{_UNLESS if doubts else ''}: {', '.join(_fits(arms))}."
    if baseline is None:
        return
    unless = _UNLESS if doubts - {"workspace"} else ""
    for batch_size in sorted({arm.saves_from for arm in arms if arm.saves_from is not None}):
        saving = [arm.arm for arm in arms if arm.saves_from == batch_size]
        yield f"{_listed(saving)} {_verb('save', saving)} memory from batch {batch_size} on{unless}."
    if others := [arm.arm for arm in arms if arm.against_baseline == "saves_not"]:
        yield f"{_listed(others)} {_verb('save', others)} no memory{unless}."


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


def _numbers(arms: Sequence[ArmPrediction]) -> Iterator[str]:
    for arm in arms:
        fewest = arm.fewest
        assert fewest is not None
        if fewest.world_size is None:
            yield f"{arm.arm} on no number of them"
        else:
            yield f"{arm.arm} from {fewest.world_size} on"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _verb(verb: str, subjects: Sequence[str]) -> str:
    return verb if len(subjects) > 1 else f"{verb}s"


def _reservations(of: WorkloadPrediction) -> Iterator[str]:
    """The limits of the figures, a sentence each."""
    if any(arm.config.trainer.compile for arm in of.arms):
        yield "Predicted is the eager step: a compiled one (trainer.compile=true) takes other memory, often less."
    if any(arm.world_size > 1 for arm in of.arms):
        yield "All figures are those of the fullest rank, the first; buffers of NCCL's own are not in them."
    elif any(arm.interpolation is None for arm in of.arms):
        yield "Every batch size was traced: sizes do not grow evenly with the batch."
    if of.target.kind == "cuda":
        yield (
            "peak is what torch.cuda.max_memory_allocated would say, with cuBLAS workspaces; not in it: the driver's "
            "context (about 0.5 GiB)."
        )
    else:
        yield "peak is the bytes of tensors; kernels' own buffers on the CPU are not in it."


def _title(of: WorkloadPrediction) -> str:
    arm = of.arms[0]
    config = arm.config
    facts = [
        f"model {component_name(config.model)} ({arm.model_size:,} parameters)",
        f"data {component_name(config.data)}",
        component_name(config.optimizer),
        f"batch_size {config.data['batch_size']}",
        *([f"seq_len {config.data['seq_len']}"] if "seq_len" in config.data else []),
        *([f"grad_accum_steps {config.trainer.grad_accum_steps}"] if config.trainer.grad_accum_steps > 1 else []),
        *(["activation_checkpointing"] if config.trainer.activation_checkpointing else []),
        *([f"{config.parallel.strategy} on {arm.world_size} ranks"] if config.parallel.strategy != "single" else []),
    ]
    return f"{', '.join(facts)}: predicted for {of.target.name}"


def _categories(of: WorkloadPrediction) -> Table:
    used = [key for key in of.arms[0].memory.peak if any(arm.memory.peak[key] for arm in of.arms)]
    columns = ["peak", "reserved", *used]
    rows = [[arm.memory.total_bytes, arm.memory.reserved_bytes, *map(arm.memory.peak.get, used)] for arm in of.arms]
    return _table("categories", "arm", columns, of, rows)


def _curves(of: WorkloadPrediction) -> Table:
    sizes = [memory.batch_size for memory in of.arms[0].curve]
    by_size = [{memory.batch_size: memory.total_bytes for memory in arm.curve} for arm in of.arms]
    rows = [[there.get(size) for size in sizes] for there in by_size]
    return _table("batches", "peak at batch", [*map(str, sizes)], of, rows)


def _ranks(of: WorkloadPrediction) -> Table:
    numbers = sorted({number for arm in of.arms for number in arm.by_world_size})
    by_number = [{number: memory.total_bytes for number, memory in arm.by_world_size.items()} for arm in of.arms]
    rows = [[there.get(number) for number in numbers] for there in by_number]
    return _table("ranks", "ranks", [*map(str, numbers)], of, rows)


def _table(
    key: str, first: str, names: Sequence[str], of: WorkloadPrediction, rows: Sequence[Sequence[int | None]]
) -> Table:
    """A row of bytes an arm."""
    columns = [Column(name.replace("_", " "), f"{name}_bytes", numeric=True, optional=True) for name in names]
    return Table(
        key=key,
        columns=(Column(first, "arm"), *columns),
        rows=tuple(
            Row(
                (Cell(arm.arm), *(Cell() if size is None else Cell(num_bytes(size), size) for size in row)), arm=arm.arm
            )
            for arm, row in zip(of.arms, rows, strict=True)
        ),
    )


def _data(of: WorkloadPrediction) -> dict[str, Any]:
    target = of.target
    cuda = {
        "capability": list(target.capability),
        "workspace_bytes": sum(target.workspaces),
    }
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
    return {
        "arm": arm.arm,
        "model": component_name(config.model),
        "data": component_name(config.data),
        "num_parameters": arm.model_size,
        **_memory(arm.memory),
        "memory_gib": config.predict.memory_gib,
        "largest_batch": None if arm.largest is None else arm.largest.batch_size,
        "saves_from_batch": arm.saves_from,
        "unvouched": [asdict(one) for one in arm.memory.unvouched],
        "curve": [_memory(memory) for memory in arm.curve],
        **({} if config.parallel.strategy == "single" else _of_ranks(arm)),
    }


def _of_ranks(arm: ArmPrediction) -> dict[str, Any]:
    return {
        "parallel": arm.config.parallel.strategy,
        "world_size": arm.world_size,
        "by_world_size": {str(number): _memory(memory) for number, memory in arm.by_world_size.items()},
        "smallest_world_size": None if arm.fewest is None else arm.fewest.world_size,
    }


def _memory(memory: StepMemory) -> dict[str, Any]:
    return {key: value for key, value in asdict(memory).items() if value is not None and key != "unvouched"}
