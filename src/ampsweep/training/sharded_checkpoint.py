"""Checkpoints of several ranks: a directory to which each rank writes its part, by `torch.distributed.checkpoint`.

`rank-1.pt` and so on hold what a rank has for itself (random numbers, its place in the data, its buffers), `state.pt`
the rest of a checkpoint as a single process writes it, with its large tensors left out: these are in the files that
torch writes. All of it is written under a temporary name and takes its place in one rename.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.futures import Future

from ampsweep.numeric_formats import dtype_name
from ampsweep.parallel.base import OtherRankError, Parallel, RankFault, together
from ampsweep.record import (
    CHECKPOINTS,
    LAST,
    PREVIOUS,
    directory_of,
    remove_leftovers,
    replacing,
)
from ampsweep.record.files import sync_directory, system_error, temporary_beside
from ampsweep.text import one_line
from ampsweep.training.checkpoint import Checkpoint, with_tensors
from ampsweep.training.checkpoint_manifest import (
    STATE,
    Chunk,
    Manifest,
    StoredFile,
    StoredTensor,
    own_file,
    stored_file,
)

_OF_TORCH: Final = ".metadata"


@dataclass(frozen=True)
class Shards:
    """The storage of checkpoints to which each rank adds its part.

    The ranks share the file system that the run's directory is on.
    """

    ranks: Parallel

    def save(self, checkpoint: Checkpoint, run_directory: Path, *, model: nn.Module) -> Path:
        """Write the directory `checkpoints/last`; each rank calls it. The one before becomes `previous`.

        Args:
            checkpoint: the state as this rank has it.
            model: the model, by whose names the state is.

        Raises:
            OSError: one of the ranks could not write its part; raised on all, and the checkpoint before is there still.
        """
        place = directory_of(run_directory / CHECKPOINTS / LAST)
        temporary = together(self.ranks, lambda: _begin(place) if self.ranks.rank == 0 else None)[0]
        assert temporary is not None, "rank 0 has made it"
        try:
            self._write(checkpoint, temporary, model)
            together(self.ranks, lambda: _publish(temporary, place) if self.ranks.rank == 0 else None)
        except BaseException as error:
            if self.ranks.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            if (of_system := system_error(error)) is not None:
                raise OSError(of_system.errno, of_system.strerror, str(place)) from error
            raise
        return place

    def _write(self, checkpoint: Checkpoint, directory: Path, model: nn.Module) -> None:
        rank = self.ranks.rank
        buffers, aliases = {name for name, _ in model.named_buffers()}, _aliases(model)
        stored: dict[str, Tensor] = {}
        sharded: set[str] = set()

        def leave_out(name: str, owner: str, tensor: Tensor) -> Tensor:
            """Store a tensor in torch's files; without values it stays in the state."""
            if not isinstance(tensor, DTensor) and tensor.ndim == 0:
                return tensor
            if isinstance(tensor, DTensor):
                sharded.add(name)
            # Buffers are those of rank 0: the ranks' can differ, where nothing averages them.
            if name not in aliases and (rank == 0 or owner not in buffers):
                stored[name] = tensor
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

        state = with_tensors(checkpoint, leave_out)
        own = self._own_buffers({name: checkpoint.model[name] for name in sorted(buffers & checkpoint.model.keys())})
        metadata = _save_tensors(stored, directory)

        def write_own() -> dict[str, Any]:
            if rank == 0:
                name, content = STATE, {f.name: getattr(state, f.name) for f in fields(state)}
            else:
                name, content = own_file(rank), {key: getattr(state, key) for key in ("rng", "data", "observed")}
                content["buffers"] = own
            with replacing(directory / name) as stream:
                torch.save(content, stream)
            written = [name, *(path.name for path in directory.glob(f"__{rank}_*"))] + [_OF_TORCH] * (rank == 0)
            return {name: stored_file(directory / name) for name in written}

        files = {name: file for written in together(self.ranks, write_own) for name, file in written.items()}

        def describe() -> None:
            """Write the manifest, the last of all files."""
            require_shared(directory, files)
            Manifest(
                world_size=self.ranks.world_size,
                files=files,
                tensors=_stored_tensors(metadata),
                sharded=frozenset(sharded),
                aliases=aliases,
            ).write(directory)

        together(self.ranks, lambda: describe() if rank == 0 else None)

    def _own_buffers(self, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of this rank's buffers that differ from rank 0's."""
        digests = {name: _digest(buffer) for name, buffer in buffers.items()}
        of_first = self.ranks.gather(digests)[0]
        return {name: buffers[name] for name, digest in digests.items() if of_first.get(name) != digest}


def require_shared(directory: Path, files: Mapping[str, StoredFile]) -> None:
    """Look for the files of all ranks.

    Raises:
        RuntimeError: another rank has written one to a disk of its own.
    """
    for name, file in files.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != file.num_bytes:
            raise RuntimeError(
                f"{name}, which another rank has written for a checkpoint, is not in {directory} here: the ranks must "
                "share the file system of output_dir"
            )


def read_tensors(
    directory: Path, manifest: Manifest, wanted: Mapping[str, Tensor | None], ranks: Parallel
) -> dict[str, Tensor]:
    """Read tensors in the form that a training has them in; each rank calls it, with the same names.

    Args:
        wanted: by name, the parameter or buffer that the tensor is, or is kept for; None: it is whole on each rank.
    """
    targets = {}
    for name, owner in wanted.items():
        stored = manifest.aliases.get(name, name)
        is_sharded = stored in manifest.sharded or not manifest.sharded
        targets[name] = _empty(manifest.tensors[stored], owner, is_sharded=is_sharded)
    _load(
        {name: tensor for name, tensor in targets.items() if name not in manifest.aliases}, directory, manifest, ranks
    )
    for name, first in manifest.aliases.items():
        if name in targets:
            targets[name].copy_(targets[first])
    return targets


def placed(saved: Tensor, owner: Tensor | None) -> Tensor:
    """Take a whole tensor in the form that a training has it in: of a sharded parameter, this rank's part."""
    stored = StoredTensor(dtype_name(saved.dtype), tuple(saved.shape), ())
    target = _empty(stored, owner, is_sharded=saved.ndim > 0)
    if not isinstance(target, DTensor):
        return saved
    # Each rank has the whole and takes its part: nothing is sent.
    return distribute_tensor(saved.to(target.device), target.device_mesh, target.placements, src_data_rank=None)


def _begin(place: Path) -> Path:
    place.parent.mkdir(exist_ok=True)
    remove_leftovers(place, place.with_name(directory_of(Path(PREVIOUS)).name))
    temporary = temporary_beside(place)
    temporary.mkdir()
    return temporary


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


class _Writer(FileSystemWriter):
    """torch's writer, whose errors tell the system's own: those of a rank are pickled, which loses what is behind."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        with _telling_system_errors():
            return super().write_data(plan, planner)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        # torch 2.11 notes the places of the tensors in a copy of what `save` returns.
        metadata.storage_data = {one.index: one.storage_data for of_rank in results for one in of_rank}
        with _telling_system_errors():
            super().finish(metadata, results)


@contextmanager
def _telling_system_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if (of_system := system_error(error)) is not None:
            raise OSError(of_system.errno, of_system.strerror) from None
        raise


@dataclass(frozen=True)
class _Place:
    """The place of a part in a file, under the names by which torch's reader asks for it."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


class _Reader(FileSystemReader):
    """torch's reader, which takes where the tensors are from the manifest."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        super().__init__(directory)
        self._manifest = manifest

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        places: dict[MetadataIndex, _Place] = {}
        described: dict[str, STORAGE_TYPES] = {}
        for name, tensor in self._manifest.tensors.items():
            chunks = []
            for number, chunk in enumerate(tensor.chunks):
                index = MetadataIndex(name, chunk.offsets, number)
                places[index] = _Place(chunk.file, chunk.begin, chunk.length)
                chunks.append(ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)))
            properties = TensorProperties(dtype=tensor.dtype)
            described[name] = TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)
        return Metadata(state_dict_metadata=described, storage_data=places)


def _save_tensors(tensors: dict[str, Tensor], directory: Path) -> Metadata:
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        metadata: Metadata = save(tensors, storage_writer=_Writer(directory), planner=planner)
    except CheckpointException as error:
        raise _failure(error) from error
    return metadata


def _load(targets: dict[str, Tensor], directory: Path, manifest: Manifest, ranks: Parallel) -> None:
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    alone = ranks.world_size == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it may be, for a single process
        try:
            load(dict(targets), storage_reader=_Reader(directory, manifest), planner=planner, no_dist=alone)
        except CheckpointException as error:
            raise _failure(error) from error


def _failure(error: CheckpointException) -> Exception:
    """One of the errors of all ranks; torch's own is no `Exception`."""
    rank, (failure, _) = min(error.failures.items(), key=lambda one: not isinstance(one[1][0], OSError))
    if isinstance(failure, OSError):
        return failure
    return OtherRankError(RankFault(rank=rank, status="failed", error=one_line(failure)))


def _stored_tensors(metadata: Metadata) -> dict[str, StoredTensor]:
    found = {}
    for name, described in metadata.state_dict_metadata.items():
        assert isinstance(described, TensorStorageMetadata), "nothing else was given"
        chunks = []
        for chunk in described.chunks:
            place = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            chunks.append(
                Chunk(tuple(chunk.offsets), tuple(chunk.sizes), place.relative_path, place.offset, place.length)
            )
        found[name] = StoredTensor(dtype_name(described.properties.dtype), tuple(described.size), tuple(chunks))
    return found


def _empty(stored: StoredTensor, owner: Tensor | None, *, is_sharded: bool) -> Tensor:
    """Make a tensor for a stored one, sharded as its owner is.

    A state of another shape than its parameter's has its values on each rank, in the form in which optimizers make it
    of a sharded gradient.
    """
    if owner is not None and tuple(owner.shape) == stored.shape:
        if isinstance(owner, DTensor):
            return torch.empty_like(owner, dtype=stored.dtype, requires_grad=False)
        return torch.empty_like(owner, dtype=stored.dtype, device="cpu", requires_grad=False)
    whole = torch.empty(stored.shape, dtype=stored.dtype)
    if isinstance(owner, DTensor) and is_sharded:
        mesh = owner.device_mesh
        return DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole


def _aliases(model: nn.Module) -> dict[str, str]:
    """Names of the model's parameters that are others, by what else they are called."""
    first: dict[nn.Parameter, str] = {}
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(parameter, name) != name:
            names[f"model.{name}"] = f"model.{first[parameter]}"
    return names


def _digest(buffer: Tensor) -> bytes:
    values = buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return blake2b(values.numpy().tobytes(), digest_size=16).digest()
