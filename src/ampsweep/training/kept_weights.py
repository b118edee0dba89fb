"""The weights that a run leaves: the model's state dict in one file, whatever the strategy."""

from pathlib import Path
from typing import Any

import torch

from ampsweep.parallel.base import together
from ampsweep.records import CHECKPOINTS, replacing
from ampsweep.records.sections import KeptWeights
from ampsweep.training.trainer import Trainer


def keep_weights(trainer: Trainer, directory: Path, kind: str) -> KeptWeights:
    """Write `checkpoints/KIND.pt` atomically, on rank 0; each rank calls it. An OSError is raised on all ranks.

    The file holds plain tensors in the dtype of the parameters; `torch.load(weights_only=True)` reads it.
    """
    file, is_first = Path(CHECKPOINTS) / f"{kind}.pt", trainer.parallel.rank == 0
    state: dict[str, Any] = trainer.model.state_dict()
    for name, value in state.items():
        if hasattr(value, "full_tensor"):  # a sharded DTensor: gathered one at a time
            whole = value.full_tensor()
            state[name] = whole.cpu() if is_first else None

    def write() -> None:
        (directory / CHECKPOINTS).mkdir(exist_ok=True)
        with replacing(directory / file) as stream:
            torch.save(state, stream)

    together(trainer.parallel, write if is_first else lambda: None)
    value = trainer.recorder.values.get(trainer.config.metric)
    return KeptWeights(file=file.as_posix(), step=trainer.step, value=value)
