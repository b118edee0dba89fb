"""The prediction of a run's memory and its error, added to the record once nothing is being measured any more."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ampsweep.config.schema import Config
from ampsweep.record import RunRecord
from ampsweep.record.parts import StepPrediction
from ampsweep.run.request import RunRequest
from ampsweep.text import GIB

if TYPE_CHECKING:
    import torch

_TRAINED: Final = frozenset({"completed", "oom", "diverged"})


def is_predicted(record: RunRecord, config: Config) -> bool:
    """Tell whether the record of a run that has ended should hold a prediction."""
    return config.predict.with_runs and record.status in _TRAINED


def add_prediction(record: RunRecord, request: RunRequest, device: "torch.device") -> None:
    """Add the prediction for a run that has trained to its record, before W&B gets the record."""
    if not is_predicted(record, request.config):
        return
    prediction, step = request.prediction, max(record.memory.step or 2, 2)
    varies = prediction is None or any(one.doubt == "varies" for one in prediction.unvouched or ())
    if varies and request.predictor is not None:
        prediction = request.predictor.load()(request.config, device, step)  # only now: what a start need not wait for
    if prediction is not None:
        record.prediction = beside_measured(prediction, record)


def beside_measured(prediction: StepPrediction, record: RunRecord) -> StepPrediction:
    """Add to the prediction the peak that was measured, and the error in percent of that peak.

    A compiled run has neither: what is predicted is the eager step.
    """
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
