"""Finding the checkpoint to resume from, a file or a directory of several ranks, and fitting it to a training."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ampsweep.parallel.base import SINGLE, Parallel
from ampsweep.records import is_checkpoint, kept_checkpoints, rank_file
from ampsweep.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    checkpoint_of,
    fresh_rng_state,
    load_checkpoint,
    read_content,
    verify,
)


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from, and its file or directory."""

    checkpoint: Checkpoint
    """The state saved by this rank, or by rank 0 if the number of ranks differs.

    From a directory it holds shards, and shared tensors may be on the meta device, until `restored` fills them in.
    """
    path: Path
    note: str | None = None  # a sentence for the user if a newer, damaged checkpoint was skipped

    def restored(
        self, model: nn.Module, batch_size: int, ranks: Parallel, device: torch.device
    ) -> tuple[Checkpoint, list[str]]:
        """Return the checkpoint fitted to this rank, and sentences for the user on what did not carry over.

        Each rank calls it, with its model to train and the samples per micro-batch. Raises as `next_batch` does.
        """
        checkpoint, notes = replace(self.checkpoint, next_batch=self.next_batch(batch_size, ranks.world_size)), []
        if checkpoint.world_size != ranks.world_size:
            checkpoint = replace(checkpoint, rng=fresh_rng_state(checkpoint.rng, ranks.rank, ranks.world_size, device))
            before, now = _ranks(checkpoint.world_size), _ranks(ranks.world_size)
            fresh = "the random numbers of each are derived afresh"
            notes = [f"the checkpoint is of {before}, this run has {now}: {fresh}"]
        own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
        is_directory = bool(self.path.name) and self.path.is_dir()  # a state in memory has an empty path
        if is_directory or any(hasattr(value, "placements") for value in own.values()):  # DTensors
            from ampsweep.training.sharded_checkpoint import restore_tensors  # imports torch.distributed

            files = [_file(self.path, rank) for rank in range(checkpoint.world_size)] if is_directory else []
            checkpoint = restore_tensors(checkpoint, files, own, ranks)
        return checkpoint, notes

    def next_batch(self, batch_size: int, world_size: int) -> int:
        """Return the index of each rank's next micro-batch, at which the global order of samples continues.

        Raises a CheckpointError if that position lies within a micro-batch.
        """
        saved = self.checkpoint
        if saved.world_size == world_size == 1:
            return saved.next_batch
        samples = saved.next_batch * saved.batch_size * saved.world_size
        index, rest = divmod(samples, batch_size * world_size)
        if rest:
            raise CheckpointError(
                f"checkpoint {self.path} has seen {samples:,} samples ({saved.next_batch:,} micro-batches of "
                f"{saved.batch_size} on {_ranks(saved.world_size)}), not a whole number of micro-batches of "
                f"{batch_size} on {_ranks(world_size)}; change data.batch_size or parallel.num_processes"
            )
        return index


def find_checkpoint(path: Path, ranks: Parallel = SINGLE) -> FoundCheckpoint:
    """Read the checkpoint at `path`, or the newest undamaged checkpoint of the run directory `path`.

    Each rank calls it, and all find the same checkpoint or raise the same CheckpointError. From a directory of several
    ranks, each reads its own file and verifies a share of the others.
    """
    candidates = [path] if is_checkpoint(path) else kept_checkpoints(path)
    if not candidates:
        raise CheckpointError(f"{path} is neither a checkpoint nor a run directory with one")
    faults: list[str] = []
    for candidate in candidates:
        checkpoint, fault = None, None
        try:
            checkpoint = _load(candidate, ranks)
        except CheckpointError as error:
            fault = str(error)
        failed = [fault for fault in ranks.gather(fault) if fault is not None]
        if checkpoint is not None and not failed:
            note = f"{faults[0]}; going on from {candidate.name}, of step {checkpoint.step}" if faults else None
            return FoundCheckpoint(checkpoint, candidate, note)
        faults.append(failed[0])
    raise CheckpointError(" and ".join(faults))


def set_aside(run_directory: Path) -> None:
    """Rename the newest checkpoint of a run, which is damaged, so that it does not replace `previous`."""
    last = kept_checkpoints(run_directory)[0]
    aside = last.with_name(f"{last.name}.damaged")
    if aside.is_dir():
        shutil.rmtree(aside)
    last.replace(aside)


def _load(path: Path, ranks: Parallel) -> Checkpoint:
    if not path.is_dir():
        checkpoint = load_checkpoint(path)
        if checkpoint.world_size > 1:
            raise CheckpointError(f"{path} is a part of the checkpoint {path.parent}")
        return checkpoint
    world_size = _file(path, 0).world_size
    own = ranks.rank if world_size == ranks.world_size else 0
    for rank in range(ranks.rank, world_size, ranks.world_size):
        if rank != own:
            verify(path / rank_file(rank))
    return load_checkpoint(path / rank_file(own))


def _file(path: Path, rank: int) -> Checkpoint:
    """Read a rank's checkpoint; its tensors stay in the file."""
    file = path / rank_file(rank)
    return checkpoint_of(read_content(file, in_place=True), file)


def _ranks(number: int) -> str:
    return "one process" if number == 1 else f"{number} ranks"
