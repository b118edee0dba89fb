"""`ampsweep doctor --try`: a training with the change of a finding, beside the training as it is."""

from collections.abc import Sequence
from typing import Final

from ampsweep.commands.multirun import start_processes
from ampsweep.commands.train import train_points
from ampsweep.config.compose import compose_each
from ampsweep.config.errors import UserError
from ampsweep.config.modes import arm_of
from ampsweep.config.schema import Config
from ampsweep.doctor.diagnosis import Diagnosis

_STEPS: Final = 200
"""Steps of each training at most: enough for its warm-up and for a loss that can be told from another."""
_NUM_SEEDS: Final = 3
"""The fewest pairs from which a comparison draws a conclusion."""
_OF_THE_DOCTOR: Final = ("doctor.",)


def train_mended(diagnosis: Diagnosis, overrides: Sequence[str], config: Config) -> int:
    """Train as it is and with the change of the first finding that overrides can make; the exit code.

    Raises:
        UserError: no finding has such a change.
    """
    changes = [finding.change.overrides for finding in diagnosis.findings if finding.change.overrides]
    if not changes:
        raise UserError("--try: no finding has a change that overrides of train.py can make")
    own = [one for one in overrides if not one.startswith(_OF_THE_DOCTOR)]
    length = [] if config.trainer.steps is None or config.trainer.steps <= _STEPS else [f"trainer.steps={_STEPS}"]
    settings = [*length, f"report.baseline={arm_of(config)}"]
    points = [
        [*_without(own, (*change, *settings, seed)), *settings, *change, seed]
        for seed in (f"seed={config.seed + number}" for number in range(_NUM_SEEDS))
        for change in ((), changes[0])
    ]
    start_processes()
    return train_points(compose_each(points))


def _without(overrides: Sequence[str], change: Sequence[str]) -> list[str]:
    """The overrides without those of keys that the change sets."""
    keys = {one.partition("=")[0].lstrip("+") for one in change}
    return [one for one in overrides if one.partition("=")[0].lstrip("+") not in keys]
