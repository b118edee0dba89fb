"""The prediction of a run: a step traced at the run's batch size, or the largest batch that fits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.modes import fp32_matmul
from ampsweep.config.schema import Config, PredictConfig, component_name
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.observe.memory_limit import memory_bytes
from ampsweep.parallel.rank_environment import place_in
from ampsweep.precision.precision import precision_class, unsupported_reason
from ampsweep.predict.calibrations import kept_calibration, timed_device
from ampsweep.predict.cuda_autocast import AutocastRefusalError
from ampsweep.predict.cuda_operators import RecurrentLayerError
from ampsweep.predict.fake_kernels import UntraceableError
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.memory_by_batch_size import MemoryByBatchSize
from ampsweep.predict.step_memory import StepMemory, Timeline, step_memory
from ampsweep.predict.target_device import TargetDevice, resolve_target, target_of
from ampsweep.records.batch_search import PredictedBatch
from ampsweep.records.sections import StepPrediction
from ampsweep.speed.devices import DEVICES, Device, device_of_driver
from ampsweep.speed.fitted import FIT
from ampsweep.speed.step_time import StepTime, StepWork
from ampsweep.text import one_line
from ampsweep.training.components.device import taken_device


def world_size_of(config: Config) -> int:
    """The number of ranks of a training, if it were started here; UserError if it is neither given nor known."""
    if config.parallel.strategy == "single":
        return 1
    if config.parallel.num_processes is not None:
        return config.parallel.num_processes  # they need not fit here
    from ampsweep.run.rank import num_processes  # a slow import of torch.distributed

    place = place_in()
    return num_processes(config.parallel, config.device) if place is None else place.world_size


def trace_run(config: Config, device: torch.device, step: int = 2) -> tuple[TargetDevice, Timeline]:
    """Trace a step of the run for its device; UserError if it cannot be traced, whatever the reason."""
    target = resolve_target(PredictConfig(), str(device))
    return target, _traced(config, target, step)


def _traced(config: Config, target: TargetDevice, step: int) -> Timeline:
    with as_user_error(config):
        return FakeTraining(config, target, world_size_of(config)).trace(config.data["batch_size"], step=step)


def predict_run(config: Config, device: torch.device, step: int = 2) -> StepPrediction:
    """Predict a step of a run for `RunRecord.prediction`, or give the reason why it cannot be predicted."""
    try:
        here = timed_device(device, config.precision)
        return _predict_on(config, resolve_target(PredictConfig(), str(device)), step, here)
    except UserError as error:
        return StepPrediction(refused=str(error))


def _predict_on(config: Config, target: TargetDevice, step: int, device: Device | None) -> StepPrediction:
    traced = _traced(config, target, step)
    time = None
    if device is not None:
        time = time_on(device, config, StepWork(traced.works, compiled=config.trainer.compile))
    return as_prediction(step_memory(traced, target, config.data["batch_size"]), target, time=time)


def time_on(device: Device, config: Config, work: StepWork) -> StepTime:
    """The time of a training's step on a device, or on as many as it has ranks; see `why_not_timed`."""
    tf32, calibration = fp32_matmul(config.precision) != "highest", kept_calibration(device.name)
    return work.on(device, tf32=tf32, num_ranks=world_size_of(config), calibration=calibration)


def predict_point(config: Config, device: torch.device, step: int = 2) -> StepPrediction:
    """Predict a step of a sweep's run as `predict_run` does and, for a run without one, on a CUDA GPU."""
    prediction = predict_run(config, device, step)
    # A batch that fills this device is not one for another; a compiled step takes other memory than the eager one.
    if device.type == "cuda" or config.max_batch.search or config.trainer.compile:
        return prediction
    return replace(prediction, on_cuda=predict_on_cuda(config, step))


def predict_on_cuda(config: Config, step: int = 2) -> StepPrediction:
    """Predict a step on this machine's CUDA GPU, or on an A100 if it has none; no run is needed."""
    mode = precision_class(config.precision)
    try:
        target = _cuda_target()
    except RuntimeError as error:  # a driver that does not answer must not end a run on a CPU
        return StepPrediction(target="cuda", refused=one_line(error))
    for why_not in (mode.missing_ability, mode.why_emulated):
        if (reason := why_not(config.precision, target.abilities)) is not None:
            return StepPrediction(target=target.name, refused=reason)
    try:
        return _predict_on(config, target, step, target.gpu)
    except UserError as error:
        return StepPrediction(target=target.name, refused=str(error))


def _cuda_target() -> TargetDevice:
    if not torch.cuda.is_available():
        return target_of(DEVICES["A100-80"])
    return replace(resolve_target(PredictConfig(), "cuda"), gpu=device_of_driver(torch.cuda.get_device_name()))


def predict_batch(config: Config, *, stop: StopRequest) -> PredictedBatch | None:
    """Predict the largest batch that trains within the run's memory; None if the device does not support the mode.
    Waits until nothing is being measured on the device."""
    try:
        with taken_device(config.device, stop=stop) as taken, as_user_error(config):
            device = taken.device
            if unsupported_reason(config.precision, device) is not None:
                return None
            target = resolve_target(PredictConfig(), str(device))
            limit = memory_bytes(device, config.trainer.memory_limit_gib)
            assert limit is not None, f"{target.name} has a memory of known size"
            training = FakeTraining(config, target)
            batch_size = config.data["batch_size"]
            memory = MemoryByBatchSize(partial(training.trace, evaluates=True), training.has_batch, target, batch_size)
            largest = memory.largest(limit).batch_size
            return PredictedBatch(batch_size=largest, unvouched=memory.unvouched or None)
    except UserError as error:
        return PredictedBatch(refused=str(error))


def as_prediction(
    memory: StepMemory, target: TargetDevice, curve: tuple[StepMemory, ...] = (), time: StepTime | None = None
) -> StepPrediction:
    """The predicted bytes of a step, their target, the peak by batch size and the step's time for
    `RunRecord.prediction`."""
    by_batch_size = {str(point.batch_size): point.total_bytes for point in curve}
    return StepPrediction(
        target=target.name,
        peak_bytes=memory.peak_bytes,
        peak=memory.peak,
        end_of_forward=memory.end_of_forward,
        allocator_peak_bytes=memory.allocated_bytes,
        reserved_bytes=None if memory.allocated_bytes is None else memory.reserved_bytes,
        peak_bytes_by_batch_size=by_batch_size or None,
        step_ms=None if time is None else time.step_ms.expected,
        step_ms_low=None if time is None else time.step_ms.low,
        step_ms_high=None if time is None else time.step_ms.high,
        least_ms=None if time is None else time.least_ms,
        error_correlation=None if time is None else FIT.correlation,
        unvouched=[*memory.unvouched] or None,
    )


@contextmanager
def as_user_error(config: Config) -> Iterator[None]:
    """Raise every error of a trace as a UserError, and a refusal by autocast as UnsupportedError."""
    name = component_name(config.model)
    try:
        yield
    except UserError:
        raise
    except AutocastRefusalError as refusal:
        raise UnsupportedError(str(refusal)) from refusal
    except (RecurrentLayerError, UntraceableError) as error:
        raise UserError(f"model={name}: {error}") from error
    except Exception as error:  # the user's own model may raise anything if its tensors have no values
        raise UserError(f"model={name} cannot be trained so: {one_line(error)}") from error
