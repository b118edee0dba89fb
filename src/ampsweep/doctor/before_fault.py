"""The state from which a run that went wrong is examined: a few steps before its fault."""

import math
from pathlib import Path
from typing import Final

from ampsweep.config.identity import config_hash
from ampsweep.config.modes import arm_of
from ampsweep.config.schema import component_name
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import TakenStep
from ampsweep.training.found_checkpoint import FoundCheckpoint, find_checkpoint
from ampsweep.training.resume import take_checkpoint

_STEPS_BEFORE: Final = 2
"""Right steps that are left before the fault, at least: what leads to it shows in them."""


def checkpoint_before_fault(patient: Patient, last_step: int, directory: Path) -> FoundCheckpoint | None:
    """Take the steps of a run again, as it took them, and keep a checkpoint shortly before they go wrong for good.

    Args:
        patient: the training, from where its steps are known: its beginning, or a checkpoint of the run.
        last_step: the last step of the run.
        directory: the place for the checkpoint.

    Returns:
        The checkpoint, at most `patient.num_steps` before the fault; None if the first steps show it, or none does.
    """
    replay, data = patient.replay(), patient.data
    trainer, every = replay.trainer, max(1, patient.num_steps // 2)
    states, is_wrong, first_wrong = [replay.state()], False, 0
    while trainer.step < last_step and patient.seconds_left > 0:
        if not is_wrong and trainer.step - states[-1].step >= every:
            states = [states[-1], replay.state()]
            data.forget_before(states[0].next_batch)
        try:
            step = replay.step()
        except Exception:  # noqa: BLE001  the model's own code may raise anything, and a replay from here shows it
            is_wrong, first_wrong = True, first_wrong if is_wrong else trainer.step
            break
        if not is_wrong:
            first_wrong = step.number
        is_wrong = _is_wrong(step)
        if is_wrong and step.scale is None:
            break  # the parameters are ruined
    if not is_wrong or len(states) == 1:
        return None
    replay.restore(states[-1] if first_wrong - states[-1].step > _STEPS_BEFORE else states[0])
    config = patient.config
    arm, name = arm_of(config), component_name(config.model)
    take_checkpoint(trainer, directory, config_hash(config), name, arm)
    return find_checkpoint(directory)


def _is_wrong(step: TakenStep) -> bool:
    return bool(step.nonfinite_gradients) or not math.isfinite(step.loss)
