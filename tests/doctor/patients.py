"""Patients as the doctor makes them of a command line."""

import time

import torch

from ampsweep.config.compose import compose_points
from ampsweep.doctor.patient import Patient
from ampsweep.doctor.replay import KeptBatches
from ampsweep.training.build.built import build_data

CPU = torch.device("cpu")


def patient_of(*overrides: str, num_steps: int = 6, seconds: float = 100.0) -> Patient:
    config = compose_points(overrides, multirun=False).points[0].config
    data = KeptBatches(build_data(config, CPU))
    return Patient(config, CPU, data, num_steps=num_steps, deadline_s=time.monotonic() + seconds)
