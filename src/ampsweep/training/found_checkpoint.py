"""The search for a checkpoint to go on from, a file or a directory of several ranks, and what it gives a training."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from ampsweep.parallel.base import SINGLE, Parallel
from ampsweep.record import RecordError, RunRecord, is_checkpoint, kept_checkpoints
from ampsweep.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    checkpoint_of,
    load_checkpoint,
    read_content,
)
from ampsweep.training.checkpoint_manifest import STATE, DamagedError, Manifest, own_file
from ampsweep.training.checkpoint_tensors import with_tensors
from ampsweep.training.random_state import fresh_rng_state

_DAMAGED: Final = ".damaged"


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from, and its file or directory."""

    checkpoint: Checkpoint
    """The state as this rank has saved it, or, where the number of ranks is another one, as rank 0 has.

    Of a directory the large tensors are on the meta device until it is `restored`.
    """
    path: Path
    note: str | None = None
    """A sentence if a newer one was passed over."""
    manifest: Manifest | None = None
    """The manifest of a directory; None: it is a file, of a single process."""

    @property
    def world_size(self) -> int:
        """The number of ranks that saved it."""
        return 1 if self.manifest is None else self.manifest.world_size

    def restored(self, model: nn.Module, batch_size: int, ranks: Parallel, device: torch.device) -> "Restored":
        """Give the whole of it as this rank of a training goes on from it; each rank calls it.

        Args:
            model: the model to train, with the names that the checkpoint has.
            batch_size: samples of a micro-batch of this rank.

        Raises:
            CheckpointError: its place in the data is none of this training's.
        """
        next_batch, notes = self.next_batch(batch_size, ranks.world_size)
        checkpoint = replace(self.checkpoint, next_batch=next_batch)
        if self.world_size != ranks.world_size:
            checkpoint = replace(checkpoint, rng=fresh_rng_state(checkpoint.rng, ranks.rank, ranks.world_size, device))
            notes.append(
                f"the checkpoint is of {_ranks(self.world_size)}, this run has {_ranks(ranks.world_size)}: the random "
                "numbers of each are derived afresh"
            )
        return Restored(self._filled(checkpoint, model, ranks), notes)

    def next_batch(self, batch_size: int, world_size: int) -> tuple[int, list[str]]:
        """Find the index of the next micro-batch of each rank: the global order of samples goes on where it was.

        Returns also sentences for the user on what had to be assumed.

        Raises:
            CheckpointError: that place lies within a micro-batch of this training.
        """
        before = self.checkpoint.next_batch
        notes: list[str] = []
        if self.world_size == world_size == 1 and self.manifest is None:
            return before, notes
        theirs = self._batch_size()
        if theirs is None:
            theirs = batch_size
            notes.append(f"the checkpoint does not tell its batch size, which is taken as this run's, {batch_size}")
        samples = before * theirs * self.world_size
        index, rest = divmod(samples, batch_size * world_size)
        if rest:
            raise CheckpointError(
                f"checkpoint {self.path} has seen {samples:,} samples ({before:,} micro-batches of {theirs} on "
                f"{_ranks(self.world_size)}), not a whole number of micro-batches of {batch_size} on "
                f"{_ranks(world_size)}; change data.batch_size or parallel.num_processes"
            )
        return index, notes

    def _batch_size(self) -> int | None:
        """The samples of a micro-batch of those who saved it; a file's are in the record beside it, if one is there."""
        if self.manifest is not None:
            return self.manifest.batch_size
        try:
            record = RunRecord.read(self.path.absolute().parents[1])
        except (FileNotFoundError, RecordError, IndexError):
            return None
        return record.identity.batch_size if record.config_hash == self.checkpoint.config_hash else None

    def _filled(self, checkpoint: Checkpoint, model: nn.Module, ranks: Parallel) -> Checkpoint:
        """Give each tensor the form that it has in this training: whole, or this rank's part of a sharded parameter."""
        own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
        if self.manifest is None and not any(map(_is_sharded, own.values())):
            return checkpoint
        from ampsweep.training import sharded_checkpoint as sharded  # a single process does without torch.distributed

        if self.manifest is None:
            return with_tensors(checkpoint, lambda _, owner, one: sharded.placed(one, own.get(owner)))
        stored = self.manifest.tensors.keys() | self.manifest.aliases.keys()
        wanted: dict[str, Tensor | None] = {}

        def want(name: str, owner: str, tensor: Tensor) -> Tensor:
            if name in stored:
                wanted[name] = own.get(owner)
            return tensor

        with_tensors(checkpoint, want)
        found = sharded.read_tensors(self.path, self.manifest, wanted, ranks)
        return with_tensors(checkpoint, lambda name, _, one: found[name] if one.is_meta else one)


@dataclass(frozen=True)
class Restored:
    """A checkpoint as a training takes it, and sentences for the user on what did not carry over."""

    checkpoint: Checkpoint
    notes: list[str]


def find_checkpoint(path: Path, ranks: Parallel = SINGLE) -> FoundCheckpoint:
    """Read the checkpoint that `path` stands for: itself, or the newest one of a run directory that is whole.

    The tensors of several ranks are not read, but their digests are compared. Each rank calls it, all find the same.

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
        found = _load_directory(path, ranks) if path.is_dir() else FoundCheckpoint(load_checkpoint(path), path)
    except CheckpointError as error:
        fault = str(error)
    faults = [fault for fault in ranks.gather(fault) if fault is not None]
    if faults or found is None:
        return CheckpointError(faults[0])
    return found


def _load_directory(path: Path, ranks: Parallel) -> FoundCheckpoint:
    """Read what a rank has saved, and look at the share of all files that is this rank's to verify.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        manifest = Manifest.read(path)
        manifest.verify(path, sorted(manifest.files)[ranks.rank :: ranks.world_size])
    except DamagedError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    content = read_content(path / STATE)
    if manifest.world_size == ranks.world_size and ranks.rank > 0:
        own = read_content(path / own_file(ranks.rank))
        try:
            content |= {"rng": own["rng"], "data": own["data"], "observed": own["observed"]}
            content["model"].update(own["buffers"])
        except (LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"checkpoint {path} is of no training: rank {ranks.rank} has no state") from error
    return FoundCheckpoint(checkpoint_of(content, path), path, manifest=manifest)


def _is_sharded(tensor: Tensor) -> bool:
    """Tell whether it is a DTensor, which a single process does not import."""
    return hasattr(tensor, "placements")


def _ranks(number: int) -> str:
    return "one process" if number == 1 else f"{number} ranks"
