"""What tests say of a run where it does not matter."""

from typing import Any

from ampsweep.records import Identity


def identity(**more: Any) -> Identity:
    """A small run on a CPU, but for what is given."""
    names = {"experiment": "smoke", "precision_mode": "fp32", "dtype": "float32", "optimizer": "adamw", "device": "cpu"}
    parts = {"model": "mlp", "task": "regression", "data": "synthetic", "compile": False, "channels_last": False}
    sizes = {"batch_size": 8, "grad_accum_steps": 1, "steps": 40, "lr": 1e-3, "seed": 0}
    return Identity(**{**names, **parts, **sizes, **more})
