"""Checkpoints of several ranks: a directory with a file per rank, published by one rename.

Each file is a `Checkpoint` with the rank's own shards. Tensors that are the same on all ranks are in the file of rank
0; the other files have them on the meta device.
"""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ampsweep.data.fingerprint import tensor_digest
from ampsweep.parallel.base import Parallel, together
from ampsweep.records import CHECKPOINTS, LAST, PREVIOUS, directory_of, rank_file, replacing
from ampsweep.records.files import sync_directory, system_error, temporary_beside
from ampsweep.training.checkpoint import Checkpoint, map_tensors


def save_together(
    checkpoint: Checkpoint, run_directory: Path, ranks: Parallel, *, buffers: Collection[str] = ()
) -> Path:
    """Write the directory `checkpoints/last`; each rank calls it. The checkpoint before becomes `previous`.

    The run directory is on a file system that the ranks share; the model's `buffers` can differ between ranks. If a
    rank cannot write its file, an OSError is raised on all ranks, and the checkpoint before is kept.
    """
    place = directory_of(run_directory / CHECKPOINTS / LAST)
    temporary = together(ranks, lambda: _temporary_directory(place) if ranks.rank == 0 else None)[0]
    assert temporary is not None, "rank 0 has made it"
    try:
        part = _part_of(checkpoint, ranks, buffers)
        together(ranks, lambda: _write(part, temporary, ranks.rank))
        together(ranks, lambda: _publish(temporary, place) if ranks.rank == 0 else None)
    except BaseException as error:
        if ranks.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        if (os_error := system_error(error)) is not None:
            raise OSError(os_error.errno, os_error.strerror, str(place)) from error
        raise
    return place


def _temporary_directory(place: Path) -> Path:
    place.parent.mkdir(exist_ok=True)
    temporary = temporary_beside(place)
    temporary.mkdir()
    return temporary


def _part_of(checkpoint: Checkpoint, ranks: Parallel, buffers: Collection[str]) -> Checkpoint:
    """Return the checkpoint with the contents of this rank's file."""
    digests = {name: tensor_digest(checkpoint.model[name]) for name in sorted(buffers) if name in checkpoint.model}
    rank0_digests = ranks.gather(digests)[0]
    own_buffers = {f"model.{name}" for name, digest in digests.items() if rank0_digests.get(name) != digest}
    sharded: dict[str, tuple[int, int] | None] = {}

    def part(name: str, _: str, tensor: Tensor) -> Tensor:
        if isinstance(tensor, DTensor):
            (placement,) = tensor.placements
            if isinstance(placement, Shard):
                sharded[name] = placement.dim, tensor.shape[placement.dim]
                return tensor.to_local()
            sharded[name] = None
            tensor = tensor.full_tensor()
        if ranks.rank == 0 or tensor.ndim == 0 or name in own_buffers:
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    return replace(map_tensors(checkpoint, part), world_size=ranks.world_size, sharded=sharded)


def _write(part: Checkpoint, directory: Path, rank: int) -> None:
    if not directory.is_dir():
        raise RuntimeError(
            f"rank {rank} does not see {directory}, which rank 0 made for a checkpoint: the ranks must share the file "
            "system of output_dir"
        )
    with replacing(directory / rank_file(rank)) as stream:
        torch.save(vars(part), stream)


def _publish(temporary: Path, place: Path) -> None:
    """Rename the directory into place, keeping a complete checkpoint on disk at every moment."""
    sync_directory(temporary)
    previous = directory_of(place.with_name(PREVIOUS))
    outdated = temporary_beside(previous)
    if place.exists():
        if previous.exists():
            previous.replace(outdated)
        place.replace(previous)
    temporary.replace(place)
    sync_directory(place.parent)
    shutil.rmtree(outdated, ignore_errors=True)


def restore_tensors(
    checkpoint: Checkpoint, files: Sequence[Checkpoint], own: Mapping[str, Tensor], ranks: Parallel
) -> Checkpoint:
    """Convert each tensor of a checkpoint to its form in this training, whose model has the tensors `own`.

    `checkpoint` is this rank's, or rank 0's if the number of ranks differs; `files` are those of all ranks (with
    tensors that may be memory-mapped), or empty if one process saved it.
    """
    tensors = [_tensors(file) for file in files]
    is_own = checkpoint.world_size == ranks.world_size

    def convert(name: str, owner_name: str, tensor: Tensor) -> Tensor:
        owner, place = own.get(owner_name), checkpoint.sharded.get(name)
        if is_own and place is not None and isinstance(owner, DTensor) and owner.placements == (Shard(place[0]),):
            local = tensor.to(owner.device)
            return DTensor.from_local(
                local, owner.device_mesh, owner.placements, run_check=False, shape=owner.shape, stride=owner.stride()
            )
        parts = [tensors_of_rank[name] for tensors_of_rank in tensors]
        if place is not None:
            tensor = torch.cat(parts, dim=place[0])
        elif tensor.is_meta:
            tensor = parts[0].clone()
        return _distribute(owner, tensor, is_replicated=name in checkpoint.sharded and place is None)

    return map_tensors(checkpoint, convert)


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    map_tensors(checkpoint, lambda name, _, tensor: found.setdefault(name, tensor))
    return found


def _distribute(owner: Tensor | None, full: Tensor, *, is_replicated: bool) -> Tensor:
    """Return this rank's shard of a tensor that belongs to the parameter `owner`, if that is sharded."""
    if not isinstance(owner, DTensor):
        return full
    if owner.shape == full.shape:  # each rank takes its shard of the full tensor: nothing is sent
        return distribute_tensor(full.to(owner.device), owner.device_mesh, owner.placements, src_data_rank=None)
    if is_replicated:
        return DTensor.from_local(full.to(owner.device), owner.device_mesh, [Replicate()], run_check=False)
    return full
