"""The search for the largest batch that trains, with a process per probe, and the training with that batch."""

import copy
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from ampsweep.config.compose import to_config
from ampsweep.config.schema import Config, MaxBatchConfig
from ampsweep.launch.isolated_child import NamedFunction
from ampsweep.launch.isolated_process import ChildError, run_isolated
from ampsweep.records import FILE_NAME, RunRecord, find_records
from ampsweep.records.batch_search import BatchSearch, PredictedBatch, Probe
from ampsweep.records.outcome import OOM_KILLED
from ampsweep.run.isolated_run import run_in_own_process
from ampsweep.run.messages import MessagePrinter
from ampsweep.run.request import RunRequest, new_record
from ampsweep.run.short_run import short_run

_PROBE: Final = NamedFunction["Probed"]("ampsweep.search.probe:probe_batch")
_PREDICT_BATCH: Final = NamedFunction[PredictedBatch | None]("ampsweep.predict.run_prediction:predict_batch")
_TWO_PROBES: Final = 5 + 2  # the time of their steps, in steps, as measured: one trains, the next runs out of memory
_NOT_THE_QUESTION: Final = (
    *("seed", "resume", "into", "dry_run", "tracking", "report", "predict", "output_dir", "name"),
)


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe on a device; `probe` is None if the device does not support the precision mode."""

    device: str
    device_name: str | None
    probe: Probe | None


def search_and_train(request: RunRequest, composed: DictConfig, sweep: Path, display: MessagePrinter) -> None:
    """Search, with a process per probe, and train with the largest batch.

    The search begins with the batch that another seed in `sweep` has found or that was predicted, else by doubling
    `data.batch_size`; `composed` is the config of the request, resolved again with each batch size. After a
    KeyboardInterrupt the probes so far are in the record.
    """
    is_begun = (request.directory / FILE_NAME).exists()  # this search was interrupted
    search = RunRecord.read(request.directory).batch_search if is_begun else None
    if search is None:
        search = _beginning(request.config, sweep)
    prober = _Prober(composed, request.directory, display)

    def is_tried_again(record: RunRecord) -> bool:
        return record.status == "oom" and record.config["data"]["batch_size"] == search.largest

    while True:
        config = prober.answer(search)
        training = replace(request, config=config, batch_search=search)
        record = run_in_own_process(training, display, is_tried_again)
        if not is_tried_again(record):
            return
        # A few steps may fit and later ones not: memory is fragmented, or some step is larger.
        search.add(Probe(batch_size=search.largest, outcome="oom", oom=record.oom, error=record.error))


def search_seconds(config: Config, num_steps: int) -> float | None:
    """Estimate the seconds of a search and of its training; None if no largest batch can be predicted.

    If the prediction holds, two batches are probed: one that trains, and the next.
    """
    began_s = time.monotonic()
    predicted = _predicted(config)
    predicted_s = time.monotonic() - began_s
    if predicted is None or not predicted.batch_size:
        return None
    data = config.data | {"batch_size": min(predicted.batch_size, config.max_batch.limit)}
    trainer = replace(config.trainer, memory_limit_gib=None)  # on a CPU it would slow the training, whose batch fits
    short = short_run(replace(config, data=data, trainer=trainer, max_batch=MaxBatchConfig()))
    if short is None:
        return None
    return predicted_s + 2 * short.start_s + _TWO_PROBES * short.step_s + short.seconds(trainer, num_steps)


class _Prober:
    """Probes batch sizes on the device, and keeps the search in the run's record."""

    def __init__(self, composed: DictConfig, directory: Path, display: MessagePrinter) -> None:
        self._composed, self._directory, self._display = composed, directory, display

    def answer(self, search: BatchSearch) -> Config:
        """Find the largest batch that trains and return the config with it; with a batch of 1 if none trains. A probe
        that fails for another reason than memory ends the search: the training then fails and records it."""
        while (size := search.next_batch) is not None:
            config = self._with_batch(size)
            found = self._ask(config, search.largest)
            if found.probe is None:
                return config
            search.add(found.probe)
            record = new_record(config, device=found.device, device_name=found.device_name, batch_search=search)
            record.write(self._directory)
        return self._with_batch(max(search.largest, 1))

    def _ask(self, config: Config, largest: int) -> Probed:
        so_far = f", {largest} trains" if largest else ""
        self._display.run_begins(config, f"trying batch {config.data['batch_size']}{so_far}")
        ended = run_isolated(_PROBE, (config,), on_message=self._display.on_message)
        ended.raise_interrupt()
        killed = None
        if ended.oom_killed:
            size = config.data["batch_size"]
            killed = Probe(batch_size=size, outcome="oom", oom=OOM_KILLED, error=OOM_KILLED.sentence)
        return ended.result or Probed(config.device, None, killed)

    def _with_batch(self, size: int) -> Config:
        composed = copy.deepcopy(self._composed)
        OmegaConf.update(composed, "data.batch_size", size)
        return to_config(composed)


def _beginning(config: Config, sweep: Path) -> BatchSearch:
    other, first = _search_of_another_seed(sweep, config), None
    predicted = _predicted(config) if other is None else other.predicted
    if other is not None:
        first = other.largest
    elif predicted is not None and predicted.batch_size is not None:
        first = max(predicted.batch_size, 1)
    batch_size = config.data["batch_size"]
    stride = 1 if first else batch_size
    return BatchSearch(limit=config.max_batch.limit, first=first or batch_size, stride=stride, predicted=predicted)


def _search_of_another_seed(sweep: Path, config: Config) -> BatchSearch | None:
    """Find the finished search of a run that differs only in its seed."""
    question = _question(asdict(config))
    for _, record in find_records(sweep).records:
        if record.status == "completed" and record.batch_search and _question(record.config) == question:
            return record.batch_search
    return None


def _predicted(config: Config) -> PredictedBatch | None:
    if not config.predict.with_runs:
        return PredictedBatch(refused="predict.with_runs=false")
    try:
        return run_isolated(_PREDICT_BATCH, (config,)).unpacked()
    except ChildError as error:  # a prediction is optional
        return PredictedBatch(refused=str(error))


def _question(settings: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in settings.items() if key not in _NOT_THE_QUESTION}
    return kept | {"data": {key: value for key, value in settings["data"].items() if key != "batch_size"}}
