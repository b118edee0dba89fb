"""Predictions beside measurements: made once a run has trained, when nothing is measured, and put into its record."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ampsweep.config.identity import config_hash
from ampsweep.config.schema import Config
from ampsweep.entries import children
from ampsweep.entries.request import RunRequest
from ampsweep.launch.isolated import run_isolated
from ampsweep.record import RunRecord

if TYPE_CHECKING:
    import torch

_GIB: Final = 2**30
_TRAINED: Final = frozenset({"completed", "oom", "diverged"})
_OF_ONE_RUN: Final = ("measured_bytes", "error_pct")


class PredictedRuns:
    """The predictions of a multirun's runs: one for all that differ in their seed alone."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], dict[str, Any]] = {}

    def of(self, config: Config) -> dict[str, Any] | None:
        """What an earlier run has made; None where the run is to make its own, as one does that searches its batch."""
        return None if config.max_batch.search else self._made.get(_key(config))

    def keep(self, directory: Path, config: Config) -> None:
        """Keep what the run in `directory` has made, or where its process died before that, make it in another one.

        Raises:
            KeyboardInterrupt: this process was asked to stop.
        """
        record = RunRecord.read(directory)
        if not _is_wanted(record, config):
            return
        # Of a search the batch size is the answer.
        config = replace(config, data=config.data | {"batch_size": record.identity.batch_size})
        made = self._made.get(_key(config)) or record.prediction or _predicted_apart(config)
        self._made[_key(config)] = made
        if record.prediction is None:
            record.prediction = _beside_measured(made, record)
            record.write(directory)


def add_prediction(record: RunRecord, request: RunRequest, device: "torch.device") -> None:
    """Put what is predicted for a run that has trained into its record, before W&B gets that."""
    if not _is_wanted(record, request.config):
        return
    prediction = request.prediction
    if prediction is None:
        from ampsweep.entries.run_prediction import predict_run  # what a start need not wait for

        prediction = predict_run(request.config, device)
    record.prediction = _beside_measured(prediction, record)


def _is_wanted(record: RunRecord, config: Config) -> bool:
    return config.predict.with_runs and record.status in _TRAINED


def _key(config: Config) -> tuple[str, int]:
    return config_hash(replace(config, seed=0)), config.data["batch_size"]


def _predicted_apart(config: Config) -> dict[str, Any]:
    ended = run_isolated(children.predict_run, (config,))
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.result is None:  # a prediction is no reason for a run to fail
        return {"refused": (ended.error or "the process ended without a result").strip().splitlines()[-1]}
    prediction: dict[str, Any] = ended.result  # type: ignore[assignment]
    return prediction


def _beside_measured(prediction: dict[str, Any], record: RunRecord) -> dict[str, Any]:
    """The prediction with the peak that was measured of what was predicted, and the error."""
    kept = {name: fact for name, fact in prediction.items() if name not in _OF_ONE_RUN}
    if "allocator_peak_bytes" in prediction:
        predicted, measured_gib = prediction["allocator_peak_bytes"], record.summary.get("memory/peak_allocated_gib")
        measured = None if measured_gib is None else round(measured_gib * _GIB)
    else:
        predicted, measured = prediction.get("peak_bytes"), record.memory.get("peak_bytes")
    if predicted is None or not measured:
        return kept
    return kept | {"measured_bytes": measured, "error_pct": 100 * (predicted - measured) / measured}
