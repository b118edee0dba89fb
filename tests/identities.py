"""What tests say of a run where it does not matter."""

from typing import Any

from ampsweep.record import Identity


def identity(**more: Any) -> Identity:
    """A small run on a CPU, but for what is given."""
    common = {
        "experiment": "smoke",
        "precision_mode": "fp32",
        "dtype": "float32",
        "model": "mlp",
        "task": "regression",
        "data": "synthetic",
        "batch_size": 8,
        "grad_accum_steps": 1,
        "steps": 40,
        "optimizer": "adamw",
        "lr": 1e-3,
        "compile": False,
        "channels_last": False,
        "seed": 0,
        "device": "cpu",
    }
    return Identity(**{**common, **more})
