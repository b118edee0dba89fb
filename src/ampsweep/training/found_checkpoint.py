"""The search for a checkpoint to go on from, a file or a directory of several ranks, and what it gives a training."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from ampsweep.parallel.base import SINGLE, Parallel
from ampsweep.record import is_checkpoint, kept_checkpoints, rank_file
from ampsweep.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    checkpoint_of,
    fresh_rng_state,
    load_checkpoint,
    read_content,
    verify,
)

_DAMAGED: Final = ".damaged"


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from, and its file or directory."""

    checkpoint: Checkpoint
    """The state as this rank has saved it, or, where the number of ranks is another one, as rank 0 has.

    Of a directory it has this rank's parts, and what all ranks have may be on the meta device, until it is `restored`.
    """
    path: Path
    note: str | None = None
    """A sentence if a newer one was passed over."""

    @property
    def world_size(self) -> int:
        """The number of ranks that saved it."""
        return self.checkpoint.world_size

    def restored(
        self, model: nn.Module, batch_size: int, ranks: Parallel, device: torch.device
    ) -> tuple[Checkpoint, list[str]]:
        """Give the whole of it as this rank of a training goes on from it, with sentences for the user on what did not
        carry over; each rank calls it.

        Args:
            model: the model to train, with the names that the checkpoint has.
            batch_size: samples of a micro-batch of this rank.

        Raises:
            CheckpointError: its place in the data is none of this training's.
        """
        checkpoint, notes = replace(self.checkpoint, next_batch=self.next_batch(batch_size, ranks.world_size)), []
        if self.world_size != ranks.world_size:
            checkpoint = replace(checkpoint, rng=fresh_rng_state(checkpoint.rng, ranks.rank, ranks.world_size, device))
            notes.append(
                f"the checkpoint is of {_ranks(self.world_size)}, this run has {_ranks(ranks.world_size)}: the random "
                "numbers of each are derived afresh"
            )
        return self._filled(checkpoint, model, ranks), notes

    def next_batch(self, batch_size: int, world_size: int) -> int:
        """Find the index of the next micro-batch of each rank: the global order of samples goes on where it was.

        Raises:
            CheckpointError: that place lies within a micro-batch of this training.
        """
        before, theirs = self.checkpoint.next_batch, self.checkpoint.batch_size
        if self.world_size == world_size == 1:
            return before
        samples = before * theirs * self.world_size
        index, rest = divmod(samples, batch_size * world_size)
        if rest:
            raise CheckpointError(
                f"checkpoint {self.path} has seen {samples:,} samples ({before:,} micro-batches of {theirs} on "
                f"{_ranks(self.world_size)}), not a whole number of micro-batches of {batch_size} on "
                f"{_ranks(world_size)}; change data.batch_size or parallel.num_processes"
            )
        return index

    def _filled(self, checkpoint: Checkpoint, model: nn.Module, ranks: Parallel) -> Checkpoint:
        """Give each tensor the form that it has in this training: whole, or this rank's part of a sharded parameter."""
        own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
        is_of_ranks = bool(self.path.name) and self.path.is_dir()  # a state in memory has an empty path
        if not is_of_ranks and not any(map(_is_sharded, own.values())):
            return checkpoint
        from ampsweep.training.sharded_checkpoint import restored_from  # a single process does without

        files = [_file(self.path, rank) for rank in range(self.world_size)] if is_of_ranks else []
        return restored_from(checkpoint, files, own, ranks)


def find_checkpoint(path: Path, ranks: Parallel = SINGLE) -> FoundCheckpoint:
    """Read the checkpoint that `path` stands for: itself, or the newest one of a run directory that is whole.

    Of a directory each rank reads its own file and verifies a share of the others. Each calls it, all find the same.

    Raises:
        CheckpointError: there is none.
    """
    if is_checkpoint(path):
        found = _load(path, ranks)
        if isinstance(found, CheckpointError):
            raise found
        return found
    candidates = kept_checkpoints(path)
    if not candidates:
        raise CheckpointError(f"{path} is neither a checkpoint nor a run directory with one")
    faults = []
    for candidate in candidates:
        found = _load(candidate, ranks)
        if isinstance(found, CheckpointError):
            faults.append(str(found))
            continue
        note = f"{faults[0]}; going on from {candidate.name}, of step {found.checkpoint.step}" if faults else None
        return replace(found, note=note)
    raise CheckpointError(" and ".join(faults))


def set_aside(run_directory: Path) -> None:
    """Rename the newest checkpoint of a run, which is damaged, so that the one before stays that for the next one."""
    last = kept_checkpoints(run_directory)[0]
    aside = last.with_name(last.name + _DAMAGED)
    if aside.is_dir():
        shutil.rmtree(aside)
    last.replace(aside)


def _load(path: Path, ranks: Parallel) -> FoundCheckpoint | CheckpointError:
    """Read one; the error, the same on all ranks, if a rank cannot."""
    found: FoundCheckpoint | None = None
    fault = None
    try:
        found = FoundCheckpoint(_load_directory(path, ranks) if path.is_dir() else _load_file(path), path)
    except CheckpointError as error:
        fault = str(error)
    faults = [fault for fault in ranks.gather(fault) if fault is not None]
    if faults or found is None:
        return CheckpointError(faults[0])
    return found


def _load_file(path: Path) -> Checkpoint:
    checkpoint = load_checkpoint(path)
    if checkpoint.world_size > 1:
        raise CheckpointError(f"{path} is a part of the checkpoint {path.parent}")
    return checkpoint


def _load_directory(path: Path, ranks: Parallel) -> Checkpoint:
    world_size = _file(path, 0).world_size
    own = ranks.rank if world_size == ranks.world_size else 0
    for rank in range(ranks.rank, world_size, ranks.world_size):
        if rank != own:
            verify(path / rank_file(rank))
    return load_checkpoint(path / rank_file(own))


def _file(path: Path, rank: int) -> Checkpoint:
    """A rank's checkpoint, whose tensors stay in its file."""
    file = path / rank_file(rank)
    return checkpoint_of(read_content(file, in_place=True), file)


def _is_sharded(tensor: Tensor) -> bool:
    """Tell whether it is a DTensor, which a single process does not import."""
    return hasattr(tensor, "placements")


def _ranks(number: int) -> str:
    return "one process" if number == 1 else f"{number} ranks"
