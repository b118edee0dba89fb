"""The memory prediction of a run and its error, added to the record after all measurements."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ampsweep.config.schema import Config
from ampsweep.record import RunRecord
from ampsweep.record.sections import StepPrediction
from ampsweep.run.request import RunRequest
from ampsweep.text import GIB

if TYPE_CHECKING:
    import torch

_TRAINED: Final = frozenset({"completed", "oom", "diverged"})


def is_predicted(record: RunRecord, config: Config) -> bool:
    """Return True if the record of an ended run should hold a prediction."""
    return config.predict.with_runs and record.status in _TRAINED


def add_prediction(record: RunRecord, request: RunRequest, device: "torch.device") -> None:
    """Add the prediction to the record of a run that has trained."""
    if not is_predicted(record, request.config):
        return
    prediction, step = request.prediction, max(record.memory.step or 2, 2)
    varies = prediction is None or any(operator.doubt == "varies" for operator in prediction.unvouched or ())
    if varies and request.predictor is not None:
        prediction = request.predictor.load()(request.config, device, step)  # imported late, so that a start is quick
    if prediction is not None:
        record.prediction = beside_measured(prediction, record)


def beside_measured(prediction: StepPrediction, record: RunRecord) -> StepPrediction:
    """Add the measured peak and the error in percent, except to a compiled run: the eager step is predicted."""
    if record.identity.compile:
        return prediction
    predicted, measured = prediction.allocator_peak_bytes, None
    if predicted is None:
        predicted, measured = prediction.peak_bytes, record.memory.peak_bytes
    elif (measured_gib := record.summary.get("memory/peak_allocated_gib")) is not None:
        measured = round(measured_gib * GIB)
    if predicted is None or not measured:
        return replace(prediction, measured_bytes=None, error_pct=None)
    return replace(prediction, measured_bytes=measured, error_pct=100 * (predicted - measured) / measured)
