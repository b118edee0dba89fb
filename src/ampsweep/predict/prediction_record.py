"""Predictions as run records of their own."""

from pathlib import Path

from ampsweep.config.identity import run_directory_name
from ampsweep.memory_categories import memory_key
from ampsweep.predict.run_prediction import as_prediction
from ampsweep.predict.target_device import TargetDevice
from ampsweep.predict.workload_prediction import ArmPrediction, WorkloadPrediction
from ampsweep.record import RunRecord
from ampsweep.record.parts import MemoryUse
from ampsweep.run.directories import new_directory
from ampsweep.run.request import new_record, now
from ampsweep.text import GIB


def write_records(prediction: WorkloadPrediction) -> Path:
    """Write a record for each arm below the config's `output_dir`; returns their directory.

    Raises:
        UserError: they cannot be written.
    """
    parent = new_directory(prediction.arms[0].config)
    for arm in prediction.arms:
        directory = parent / run_directory_name(arm.config)
        directory.mkdir()
        predicted_record(arm, prediction.target).write(directory)
    return parent


def predicted_record(arm: ArmPrediction, target: TargetDevice) -> RunRecord:
    """The record of an arm that was predicted only, with its figures under the keys of a measured one."""
    record = new_record(
        arm.config,
        device=target.kind,
        device_name=target.name,
        model_size=arm.model_size,
        world_size=arm.world_size,
    )
    memory = arm.memory
    record.kind, record.status, record.ended_at = "predicted", "completed", now()
    record.memory = MemoryUse(peak_bytes=memory.peak_bytes, peak=memory.peak, end_of_forward=memory.end_of_forward)
    record.summary = {memory_key(category): num_bytes / GIB for category, num_bytes in memory.peak.items()}
    record.summary["memory/peak_allocated_gib"] = memory.total_bytes / GIB
    if memory.allocated_bytes is not None and memory.reserved_bytes is not None:
        record.summary["memory/peak_reserved_gib"] = memory.reserved_bytes / GIB
        record.memory.allocator_peak_bytes = memory.allocated_bytes
        record.memory.unattributed_bytes = memory.allocated_bytes - memory.peak_bytes
    record.prediction = as_prediction(memory, target, arm.curve)
    return record
