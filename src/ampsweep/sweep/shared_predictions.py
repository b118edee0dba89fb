"""Predictions of a multirun: one for all runs that differ only in their seed, or where they begin."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from ampsweep.config.identity import training_hash
from ampsweep.config.schema import Config
from ampsweep.launch.child import NamedFunction
from ampsweep.launch.isolated import ChildError, run_isolated
from ampsweep.record import RunRecord
from ampsweep.record.parts import StepPrediction
from ampsweep.run.prediction_error import beside_measured, is_predicted

PREDICT_RUN: Final = NamedFunction[StepPrediction]("ampsweep.predict.run_prediction:predict_run")
"""The predictor that a run itself calls, once it has trained (`RunRequest.predictor`)."""
_PREDICT_RUN_APART: Final = NamedFunction[StepPrediction]("ampsweep.predict.run_prediction:predict_run_apart")


class SharedPredictions:
    """The predictions for the runs of a multirun so far."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], StepPrediction] = {}

    def of(self, config: Config) -> StepPrediction | None:
        """Find the prediction of an earlier run; None if the run makes its own, as after a search for its batch."""
        return None if config.max_batch.search else self._made.get(_key(config))

    def keep(self, directory: Path, config: Config) -> None:
        """Keep the prediction that the run in `directory` made; if its process died before, make it in another one.

        Raises:
            KeyboardInterrupt: this process was asked to stop.
        """
        record = RunRecord.read(directory)
        if not is_predicted(record, config):
            return
        # Of a search the batch size is the answer.
        config = replace(config, data=config.data | {"batch_size": record.identity.batch_size})
        made = self._made.get(_key(config)) or record.prediction or _predicted_apart(config)
        self._made[_key(config)] = made
        if record.prediction is None:
            record.prediction = beside_measured(made, record)
            record.write(directory)


def _key(config: Config) -> tuple[str, int]:
    return training_hash(replace(config, seed=0)), config.data["batch_size"]


def _predicted_apart(config: Config) -> StepPrediction:
    try:
        return run_isolated(_PREDICT_RUN_APART, (config,)).unpacked()
    except ChildError as error:  # a prediction is no reason for a run to fail
        return StepPrediction(refused=str(error))
