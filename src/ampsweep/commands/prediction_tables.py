"""Predictions as tables and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampsweep.config.schema import component_name
from ampsweep.predict.answers import sentences
from ampsweep.predict.autocast_lists import lists_of
from ampsweep.predict.step_memory import StepMemory
from ampsweep.predict.workload_prediction import ArmPrediction, WorkloadPrediction
from ampsweep.report.sentences import float8
from ampsweep.report.sentences.unvouched import unvouched
from ampsweep.report.terminal import Terminal
from ampsweep.text import num_bytes

_PLAIN_WIDTH = 120
_NUMBERS = (2, 4, 8, 16, 64, 256, 1024)
"""Numbers of ranks in the table, beside the configured one; JSON has the powers of two between them, too."""


def print_prediction(prediction: WorkloadPrediction, console: Console) -> None:
    """Print the memory by category, its growth with the batch, and the answers."""
    if not console.is_terminal:
        console = Terminal(width=_PLAIN_WIDTH)  # a pipe has no edge at 80 columns
    if prediction.arms:
        console.print(Text(f"\n{_title(prediction)}", style="bold"))
        curves = _curves(prediction) if prediction.arms[0].world_size == 1 else _ranks(prediction)
        console.print(_categories(prediction), curves, sep="\n")
    for arm, reason in prediction.unsupported.items():
        console.print(Text(f"{arm}: {reason}"))
    for line in said(prediction):
        console.print(Text(line))
    for line in _of_float8(prediction):
        console.print(Text(line))
    for line in unvouched(prediction.unvouched):
        console.print(Text(line))
    for line in _reservations(prediction):
        console.print(Text(line, style="dim"))


def said(prediction: WorkloadPrediction) -> list[str]:
    """The answers in sentences."""
    if not prediction.arms:
        return []
    doubts = {one.doubt for one in prediction.unvouched}
    return [*sentences(prediction.answers, prediction.baseline, prediction.arms[0].config.predict.memory_gib, doubts)]


def _of_float8(prediction: WorkloadPrediction) -> Iterator[str]:
    """Yield what the target emulates, and what float8 can gain where it does not."""
    for arm in prediction.arms:
        if arm.emulated is not None:
            yield float8.emulated_memory(arm.arm, arm.emulated)
    yield from dict.fromkeys(f"{arm.float8_gain}." for arm in prediction.arms if arm.float8_gain is not None)


def as_json(predictions: Sequence[WorkloadPrediction], refused: Sequence[str] = ()) -> str:
    """All predictions as one JSON object, and why the other workloads have none."""
    found = [_workload(prediction) for prediction in predictions]
    return json.dumps({"schema": 1, "workloads": found, "refused": refused}, indent=1)


def _title(prediction: WorkloadPrediction) -> str:
    arm = prediction.arms[0]
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
    return f"{', '.join(facts)}: predicted for {prediction.target.name}"


def _categories(prediction: WorkloadPrediction) -> Table:
    used = [key for key in prediction.arms[0].memory.peak if any(arm.memory.peak[key] for arm in prediction.arms)]
    on_cuda = prediction.target.kind == "cuda"
    table = _table("arm", "peak", *(["reserved"] if on_cuda else []), *(key.replace("_", " ") for key in used))
    for arm in prediction.arms:
        memory = arm.memory
        reserved = [num_bytes(memory.reserved_bytes)] if memory.reserved_bytes is not None else []
        table.add_row(arm.arm, num_bytes(memory.total_bytes), *reserved, *(num_bytes(memory.peak[key]) for key in used))
    return table


def _curves(prediction: WorkloadPrediction) -> Table:
    sizes = [memory.batch_size for memory in prediction.arms[0].curve]
    table = _table("peak at batch", *map(str, sizes))
    for arm in prediction.arms:
        by_size = {memory.batch_size: memory for memory in arm.curve}
        table.add_row(arm.arm, *(num_bytes(by_size[size].total_bytes) if size in by_size else "-" for size in sizes))
    return table


def _ranks(prediction: WorkloadPrediction) -> Table:
    first = prediction.arms[0]
    numbers = [number for number in first.by_world_size if number in (*_NUMBERS, first.world_size)]
    table = _table("ranks", *map(str, numbers))
    for arm in prediction.arms:
        table.add_row(arm.arm, *(num_bytes(arm.by_world_size[number].total_bytes) for number in numbers))
    return table


def _table(first: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _reservations(prediction: WorkloadPrediction) -> Iterator[str]:
    """Yield the limits of the figures, a sentence each."""
    yield from _of_eager_step(prediction)
    if any(arm.is_measured for arm in prediction.arms):
        yield "Measured: two small steps were taken on the CPU, because values lead through this model's step."
    if any(arm.world_size > 1 for arm in prediction.arms):
        yield "All figures are those of the fullest rank, the first; buffers of NCCL's own are not in them."
    elif any(arm.interpolation is None for arm in prediction.arms):
        yield "Every batch size was traced: sizes do not grow evenly with the batch."
    if prediction.target.kind == "cuda":
        asked = prediction.target.torch_version
        if (used := lists_of(asked)) != asked:
            yield f"What autocast casts in torch {_dotted(asked)} is not known; the lists of {_dotted(used)} are used."
        yield (
            "peak is what torch.cuda.max_memory_allocated would say, with cuBLAS workspaces; not in it: the driver's "
            "context (about 0.5 GiB)."
        )
    else:
        yield "peak is the bytes of tensors; kernels' own buffers on the CPU are not in it."


def _of_eager_step(prediction: WorkloadPrediction) -> Iterator[str]:
    """Yield a sentence where the training would not take the step that was predicted."""
    if any(arm.config.trainer.compile for arm in prediction.arms):
        yield "Predicted is the eager step: a compiled one (trainer.compile=true) takes other memory, often less."


def _workload(prediction: WorkloadPrediction) -> dict[str, Any]:
    target = prediction.target
    cuda = {
        "capability": list(target.capability),
        "workspace_bytes": sum(target.workspaces),
        "autocast_of_torch": _dotted(lists_of(target.torch_version)),
    }
    return {
        "target": target.kind,
        "torch": _dotted(target.torch_version),
        **(cuda if target.kind == "cuda" else {}),
        "baseline": prediction.baseline,
        "modes": [_arm(prediction, arm) for arm in prediction.arms],
        "unsupported": prediction.unsupported,
        "sentences": [
            *said(prediction),
            *_of_float8(prediction),
            *unvouched(prediction.unvouched),
            *_of_eager_step(prediction),
        ],
    }


def _arm(prediction: WorkloadPrediction, arm: ArmPrediction) -> dict[str, Any]:
    config = arm.config
    (answer,) = (answer for answer in prediction.answers if answer.arm == arm.arm)
    return {
        "arm": arm.arm,
        "model": component_name(config.model),
        "data": component_name(config.data),
        "num_parameters": arm.model_size,
        **_memory(arm.memory),
        "memory_gib": config.predict.memory_gib,
        "largest_batch": None if answer.largest is None else answer.largest.batch_size,
        "saves_from_batch": answer.saves_from,
        "is_measured": arm.is_measured,
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


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _memory(memory: StepMemory) -> dict[str, Any]:
    return {key: value for key, value in asdict(memory).items() if value is not None and key != "unvouched"}
