"""What runs in child processes; imports torch only there, so that the parent of a sweep stays light."""

from collections.abc import Callable, Sequence
from typing import Any

from ampsweep.batch_search import PredictedBatch
from ampsweep.config.schema import Config
from ampsweep.entries.checked import Checked
from ampsweep.entries.messages import Probed
from ampsweep.entries.request import RunRequest
from ampsweep.launch.signals import StopRequest
from ampsweep.record import Status
from ampsweep.tracking.wandb_process import WandbAddress


def train(request: RunRequest, *, send: Callable[[object], None], stop: StopRequest) -> Status:
    """`ampsweep.entries.run.run_once`."""
    from ampsweep.entries.run import run_once

    return run_once(request, send=send, stop=stop)


def check(
    configs: Sequence[Config], wandb: WandbAddress | None, *, send: Callable[[object], None], stop: StopRequest
) -> list[Checked]:
    """`ampsweep.entries.check.check_points`."""
    from ampsweep.entries.check import check_points

    return check_points(configs, wandb)


def probe(config: Config, *, send: Callable[[object], None], stop: StopRequest) -> Probed:
    """`ampsweep.entries.probe.probe_batch`."""
    from ampsweep.entries.probe import probe_batch

    return probe_batch(config, send=send, stop=stop)


def predict_run(config: Config, *, send: Callable[[object], None], stop: StopRequest) -> dict[str, Any]:
    """`ampsweep.entries.run_prediction.predict_run`, while nothing is measured on the device."""
    from ampsweep.build.device import resolve_device
    from ampsweep.entries.run_prediction import predict_run
    from ampsweep.launch.device_lock import device_lock

    device = resolve_device(config.device)
    with device_lock(str(device), stop=stop):
        return predict_run(config, device)


def predict_batch(config: Config, *, send: Callable[[object], None], stop: StopRequest) -> PredictedBatch | None:
    """`ampsweep.entries.run_prediction.predict_batch`, while nothing is measured on the device."""
    from ampsweep.build.device import resolve_device
    from ampsweep.entries.run_prediction import predict_batch
    from ampsweep.launch.device_lock import device_lock

    device = resolve_device(config.device)
    with device_lock(str(device), stop=stop):
        return predict_batch(config, device)


def estimate(configs: Sequence[Config], *, send: Callable[[object], None], stop: StopRequest) -> list[float | None]:
    """`ampsweep.entries.estimate.estimate_seconds`."""
    from ampsweep.entries.estimate import estimate_seconds

    return estimate_seconds(configs, stop=stop)
