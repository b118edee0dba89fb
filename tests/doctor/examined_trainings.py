"""Trainings as the doctor makes them of a command line."""

import time

import torch

from ampsweep.config.compose import compose_points
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import KeptBatches
from ampsweep.training.components.built import build_data

CPU = torch.device("cpu")


def examined_of(*overrides: str, num_steps: int | None = 6, seconds: float = 100.0) -> ExaminedTraining:
    """None takes the steps of `doctor.steps`."""
    config = compose_points(["device=cpu", *overrides], multirun=False).points[0].config
    device = torch.device(config.device)
    data, deadline_s = KeptBatches(build_data(config, device)), time.monotonic() + seconds
    return ExaminedTraining(config, device, data, num_steps=num_steps or config.doctor.steps, deadline_s=deadline_s)
