"""Checkpoints of several ranks: a directory with a file of each, which takes its place in one rename.

Each file is a whole `Checkpoint` with the rank's own parts of what is sharded. What is the same on all ranks is in that
of rank 0 alone; in the others it is on the meta device.
"""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ampsweep.parallel.base import Parallel, together
from ampsweep.record import CHECKPOINTS, LAST, PREVIOUS, directory_of, rank_file, replacing
from ampsweep.record.files import sync_directory, system_error, temporary_beside
from ampsweep.training.checkpoint import Checkpoint, with_tensors


def save_together(
    checkpoint: Checkpoint, run_directory: Path, ranks: Parallel, *, buffers: Collection[str] = ()
) -> Path:
    """Write the directory `checkpoints/last`; each rank calls it. The one before becomes `previous`.

    Args:
        checkpoint: the state as this rank has it.
        run_directory: on a file system that the ranks share.
        buffers: names of the model's buffers, which can differ between ranks.

    Raises:
        OSError: one of the ranks could not write its part; raised on all, and the checkpoint before is there still.
    """
    place = directory_of(run_directory / CHECKPOINTS / LAST)
    temporary = together(ranks, lambda: _begun(place) if ranks.rank == 0 else None)[0]
    assert temporary is not None, "rank 0 has made it"
    try:
        part = _part_of(checkpoint, ranks, buffers)
        together(ranks, lambda: _write(part, temporary, ranks.rank))
        together(ranks, lambda: _publish(temporary, place) if ranks.rank == 0 else None)
    except BaseException as error:
        if ranks.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        if (of_system := system_error(error)) is not None:
            raise OSError(of_system.errno, of_system.strerror, str(place)) from error
        raise
    return place


def _begun(place: Path) -> Path:
    place.parent.mkdir(exist_ok=True)
    temporary = temporary_beside(place)
    temporary.mkdir()
    return temporary


def _part_of(checkpoint: Checkpoint, ranks: Parallel, buffers: Collection[str]) -> Checkpoint:
    """The checkpoint as a rank's file has it."""
    digests = {name: _digest(checkpoint.model[name]) for name in sorted(buffers) if name in checkpoint.model}
    of_first = ranks.gather(digests)[0]
    own_buffers = {f"model.{name}" for name, digest in digests.items() if of_first.get(name) != digest}
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

    return replace(with_tensors(checkpoint, part), world_size=ranks.world_size, sharded=sharded)


def _digest(buffer: Tensor) -> bytes:
    values = buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return blake2b(values.numpy().tobytes(), digest_size=16).digest()


def _write(part: Checkpoint, directory: Path, rank: int) -> None:
    if not directory.is_dir():
        raise RuntimeError(
            f"{directory}, which rank 0 has made for a checkpoint, is not there for rank {rank}: the ranks must share "
            "the file system of output_dir"
        )
    with replacing(directory / rank_file(rank)) as stream:
        torch.save({one.name: getattr(part, one.name) for one in fields(part)}, stream)


def _publish(temporary: Path, place: Path) -> None:
    """Let the directory take its place in one rename. At every moment there is a whole checkpoint, if there was one."""
    sync_directory(temporary)
    outdated: list[Path] = []
    if place.exists():
        previous = directory_of(place.with_name(PREVIOUS))
        if previous.exists():
            outdated.append(temporary_beside(previous))
            previous.replace(outdated[0])
        place.replace(previous)
    temporary.replace(place)
    sync_directory(place.parent)
    for path in outdated:
        shutil.rmtree(path, ignore_errors=True)


def restored_from(
    checkpoint: Checkpoint, files: Sequence[Checkpoint], own: Mapping[str, Tensor], ranks: Parallel
) -> Checkpoint:
    """Give each tensor of a checkpoint the form that it has in this training.

    Args:
        checkpoint: that of this rank, or of rank 0 where the number of ranks was another one.
        files: those of all ranks that saved it, which may lie in their files still; none for that of one process.
        own: the model's tensors by their names.
    """
    tensors = [_tensors(file) for file in files]
    is_own = checkpoint.world_size == ranks.world_size

    def form(name: str, owner_name: str, tensor: Tensor) -> Tensor:
        owner, place = own.get(owner_name), checkpoint.sharded.get(name)
        if is_own and place is not None and isinstance(owner, DTensor) and owner.placements == (Shard(place[0]),):
            return DTensor.from_local(
                tensor.to(owner.device),
                owner.device_mesh,
                owner.placements,
                run_check=False,
                shape=owner.shape,
                stride=owner.stride(),
            )
        whole = joined_from(tensor, [one[name] for one in tensors], place)
        return split_as(owner, whole, is_replicated=name in checkpoint.sharded and place is None)

    return with_tensors(checkpoint, form)


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def note(name: str, _: str, tensor: Tensor) -> Tensor:
        found[name] = tensor
        return tensor

    with_tensors(checkpoint, note)
    return found


def joined_from(tensor: Tensor, parts: Sequence[Tensor], place: tuple[int, int] | None) -> Tensor:
    """Join the ranks' parts of a tensor; `place` is that of `Checkpoint.sharded`."""
    if place is not None:
        return torch.cat([*parts], dim=place[0])
    return parts[0].clone() if tensor.is_meta else tensor


def split_as(owner: Tensor | None, whole: Tensor, *, is_replicated: bool = False) -> Tensor:
    """Take this rank's part of a tensor that is kept for a parameter, or is it, where that is sharded."""
    if not isinstance(owner, DTensor):
        return whole
    if owner.shape == whole.shape:
        # Each rank has the whole and takes its part: nothing is sent.
        return distribute_tensor(whole.to(owner.device), owner.device_mesh, owner.placements, src_data_rank=None)
    if is_replicated:
        return DTensor.from_local(whole.to(owner.device), owner.device_mesh, [Replicate()], run_check=False)
    return whole
