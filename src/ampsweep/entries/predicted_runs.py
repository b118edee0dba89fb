"""Predictions beside measurements: made once the run is over, when nothing is measured, and put into its record."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ampsweep.config.identity import config_hash
from ampsweep.config.schema import Config
from ampsweep.entries import children
from ampsweep.launch.isolated import run_isolated
from ampsweep.record import RunRecord

_GIB: Final = 2**30
_TRAINED: Final = frozenset({"completed", "oom", "diverged"})


class PredictedRuns:
    """The predictions of a multirun's runs: one for all that differ in their seed alone."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], dict[str, Any]] = {}

    def add_to(self, directory: Path, config: Config) -> None:
        """Predict the run in `directory` in a process of its own, if it trained, and note that in its record.

        Raises:
            KeyboardInterrupt: this process was asked to stop.
        """
        batch_size = RunRecord.read(directory).identity.batch_size  # of a search it is the answer
        config = replace(config, seed=0, data=config.data | {"batch_size": batch_size})
        add_prediction(directory, config, lambda: self._predicted(config, batch_size))

    def _predicted(self, config: Config, batch_size: int) -> dict[str, Any]:
        key = config_hash(config), batch_size
        if key not in self._made:
            self._made[key] = _predicted_apart(config)
        return self._made[key]


def add_prediction(directory: Path, config: Config, predict: Callable[[], dict[str, Any]]) -> None:
    """Note in the record of a run that trained what `predict` says of it, and how far that is from what it measured."""
    record = RunRecord.read(directory)
    if not config.predict.with_runs or record.status not in _TRAINED:
        return
    prediction = predict()
    record.prediction = prediction | _against_measured(prediction, record)
    record.write(directory)


def _predicted_apart(config: Config) -> dict[str, Any]:
    ended = run_isolated(children.predict_run, (config,))
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.result is None:  # a prediction is no reason for a run to fail
        return {"refused": (ended.error or "the process ended without a result").strip().splitlines()[-1]}
    prediction: dict[str, Any] = ended.result  # type: ignore[assignment]
    return prediction


def _against_measured(prediction: dict[str, Any], record: RunRecord) -> dict[str, Any]:
    """The peak that was measured of what was predicted, and the error."""
    if "allocator_peak_bytes" in prediction:
        predicted, measured_gib = prediction["allocator_peak_bytes"], record.summary.get("memory/peak_allocated_gib")
        measured = None if measured_gib is None else round(measured_gib * _GIB)
    else:
        predicted, measured = prediction.get("peak_bytes"), record.memory.get("peak_bytes")
    if predicted is None or not measured:
        return {}
    return {"measured_bytes": measured, "error_pct": 100 * (predicted - measured) / measured}
