"""The prediction of a run and its error, beside what was measured: made once nothing is measured any more."""

from typing import TYPE_CHECKING, Any, Final

from ampsweep.config.schema import Config
from ampsweep.record import RunRecord
from ampsweep.run.request import RunRequest

if TYPE_CHECKING:
    import torch

_GIB: Final = 2**30
_TRAINED: Final = frozenset({"completed", "oom", "diverged"})
_OF_ONE_RUN: Final = ("measured_bytes", "error_pct")


def is_predicted(record: RunRecord, config: Config) -> bool:
    """Tell whether the record of a run that has ended is to hold a prediction."""
    return config.predict.with_runs and record.status in _TRAINED


def add_prediction(record: RunRecord, request: RunRequest, device: "torch.device") -> None:
    """Put what is predicted for a run that has trained into its record, before W&B gets that."""
    if not is_predicted(record, request.config):
        return
    prediction = request.prediction
    if prediction is None and request.predictor is not None:
        prediction = request.predictor.load()(request.config, device)  # only now: what a start need not wait for
    if prediction is not None:
        record.prediction = beside_measured(prediction, record)


def beside_measured(prediction: dict[str, Any], record: RunRecord) -> dict[str, Any]:
    """The prediction with the peak that was measured of what was predicted, and the error in percent of it."""
    kept = {name: fact for name, fact in prediction.items() if name not in _OF_ONE_RUN}
    if "allocator_peak_bytes" in prediction:
        predicted, measured_gib = prediction["allocator_peak_bytes"], record.summary.get("memory/peak_allocated_gib")
        measured = None if measured_gib is None else round(measured_gib * _GIB)
    else:
        predicted, measured = prediction.get("peak_bytes"), record.memory.get("peak_bytes")
    if predicted is None or not measured:
        return kept
    return kept | {"measured_bytes": measured, "error_pct": 100 * (predicted - measured) / measured}
