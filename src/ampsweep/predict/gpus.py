"""The devices whose speed is predicted, and their prices; without torch, so that a wrong name is refused at once."""

from typing import Final

from ampsweep.config.errors import UserError
from ampsweep.config.schema import PredictConfig
from ampsweep.speed.devices import DEVICES, Device, device_named

_FOR_RENT: Final = ("T4", "L4", "A10", "RTX4090", "A100-80", "H100", "H200")


def chosen_gpus(config: PredictConfig) -> dict[Device, float | None]:
    """The chosen GPUs with their prices per hour; UserError: an unknown name, or a price of a GPU that is not chosen.
    Empty if no speed is wanted."""
    if not config.of_gpus:
        return {}
    prices = {_named("prices", name): float(price) for name, price in (config.prices or {}).items()}
    chosen = [_named("gpus", name) for name in config.gpus or ()] or [*prices] or [DEVICES[name] for name in _FOR_RENT]
    if idle := [gpu.name for gpu in prices if gpu not in chosen]:
        raise UserError(f"predict.prices: {idle[0]} has a price, but predict.gpus does not have it")
    return {gpu: prices.get(gpu) for gpu in chosen}


def _named(key: str, name: object) -> Device:
    if name in ("cpu", "cuda"):  # this machine's own
        return _here(str(name))
    try:
        return device_named(str(name))
    except ValueError as error:
        raise UserError(f"predict.{key}: {error}") from error


def _here(kind: str) -> Device:
    import torch

    from ampsweep.predict.calibrations import device_here, kept_calibration

    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("predict.gpus: this machine has no CUDA device")
    here = device_here(torch.device(kind))
    if not here.driver_names and kept_calibration(here.name) is None:
        measure = f"`ampsweep predict --calibrate device={kind}` measures it"
        raise UserError(f"predict.gpus: nothing is known of this machine's {kind}; {measure}")
    return here
