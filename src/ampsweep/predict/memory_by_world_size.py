"""The memory of the fullest rank on any number of ranks, from traces on a few."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import numpy as np
from torch import Tensor, nn

from ampsweep.config.schema import Config
from ampsweep.parallel.place import place_in
from ampsweep.predict.step_memory import StepMemory, fits, step_memory
from ampsweep.predict.target_device import TargetDevice
from ampsweep.predict.timeline import Timeline, same_course

MOST: Final = 1024
"""The search for a number of ranks ends here."""
_PRIMES: Final = (13, 61, 11)
"""Numbers of ranks of which few sizes of parameters are multiples, so that shards and whole parameters differ."""
_ITEM_BYTES: Final = (1, 2, 4, 8)


def world_size_of(config: Config) -> int:
    """The number of ranks that a training has, or will have when it is started here.

    Raises:
        UserError: it is not given, and not one for each accelerator either.
    """
    if config.parallel.strategy == "single":
        return 1
    if config.parallel.num_processes is not None:
        return config.parallel.num_processes  # here they need not fit
    from ampsweep.run.rank import num_processes  # what it needs of torch a training in one process can spare

    place = place_in()
    return num_processes(config.parallel, config.device) if place is None else place.world_size


@dataclass(frozen=True)
class ShardBytes:
    """Bytes of the first rank's shards of some parameters in one buffer, or of all ranks' with their padding.

    FSDP2 divides a parameter by its rows: each shard has as many as the first one's, the last ones being padding.
    """

    parameters: tuple[tuple[int, int], ...]
    """Rows, and elements of a row, of each."""
    item_bytes: int
    is_gathered: bool
    """The shards of all ranks."""

    def at(self, world_size: int) -> int:
        """The bytes on so many ranks."""
        elements = sum(-(-rows // world_size) * columns for rows, columns in self.parameters)
        return elements * self.item_bytes * (world_size if self.is_gathered else 1)


def shard_bytes(model: nn.Module) -> set[ShardBytes]:
    """Every size that depends on the number of ranks in a step of a sharded model: of single parameters, of those that
    are gathered together, and of one number of each rank, such as its part of a norm."""
    together: list[tuple[Tensor, ...]] = [(parameter,) for parameter in model.parameters()]
    for group in _groups(model):
        together += [tuple(group), tuple(parameter for parameter in group if parameter.requires_grad)]
    layouts = {((1, 1),)} | {tuple((one.shape[0], prod(one.shape[1:])) for one in group) for group in together if group}
    return {
        ShardBytes(layout, item_bytes, is_gathered)
        for layout in layouts
        for item_bytes in _ITEM_BYTES
        for is_gathered in (False, True)
    }


def _groups(model: nn.Module) -> Iterator[list[Tensor]]:
    """The parameters that FSDP2 gathers together."""
    from torch.distributed.fsdp import FSDPModule  # takes its time, and is needed for several ranks only

    taken: set[int] = set()
    for module in reversed([*model.modules()]):  # the innermost first
        if isinstance(module, FSDPModule):
            group: list[Tensor] = [parameter for parameter in module.parameters() if id(parameter) not in taken]
            taken.update(map(id, group))
            yield group


class NotDividedError(Exception):
    """Raised for steps with sizes that do not depend on the number of ranks as those of shards do."""


class DividedStep:
    """The step of the fullest rank on any number of ranks, from its traces on some.

    Each size is either the same in all of them, or one that shards have in all of them. Where several such sizes are
    possible they have to agree on the number that is asked for.

    Raises:
        NotDividedError: a size is neither, or the order of allocations differs.
    """

    def __init__(self, traced: Mapping[int, Timeline], shards: Iterable[ShardBytes]) -> None:
        self._step, *others = traced.values()
        if not all(same_course(self._step, other) for other in others):
            raise NotDividedError
        by_sizes: dict[tuple[int, ...], list[ShardBytes]] = {}
        for shard in shards:
            by_sizes.setdefault(tuple(map(shard.at, traced)), []).append(shard)
        together = np.stack([step.sizes for step in traced.values()], axis=1)
        distinct, self._which = np.unique(together, axis=0, return_inverse=True)
        self._sizes: list[tuple[set[int], list[ShardBytes]]] = []
        for sizes in distinct.tolist():
            same, of_shards = {*sizes}, by_sizes.get(tuple(sizes), [])
            if len(same) > 1 and not of_shards:
                raise NotDividedError
            self._sizes.append((same if len(same) == 1 else set(), of_shards))

    def at(self, world_size: int) -> Timeline | None:
        """The step on so many ranks; None where the traces leave a size open."""
        sizes: list[int] = []
        for same, of_shards in self._sizes:
            possible = same | {shard.at(world_size) for shard in of_shards}
            if len(possible) > 1:
                return None
            sizes.extend(possible)
        return replace(self._step, sizes=np.array(sizes, dtype=np.int64)[self._which.reshape(-1)])


class MemoryByWorldSize:
    """The memory of the fullest rank on any number of ranks; one number is traced at once, others where needed.

    Args:
        trace: returns the step of rank 0 on a number of ranks, and the sizes of its shards.
        is_sharded: False where each rank has the whole model, so that their number changes nothing.
    """

    def __init__(
        self,
        trace: Callable[[int], tuple[Timeline, set[ShardBytes]]],
        target: TargetDevice,
        batch_size: int,
        world_size: int,
        *,
        is_sharded: bool,
    ) -> None:
        self._trace, self._target, self._batch_size = trace, target, batch_size
        self._world_size, self._is_sharded = world_size, is_sharded
        step, self._shards = trace(world_size)
        self._traced = {world_size: step}
        self._divided: DividedStep | None = None
        self._primes = [prime for prime in _PRIMES if prime != world_size]
        """Numbers of ranks to trace for the sake of all others."""

    def at(self, world_size: int) -> StepMemory:
        """The memory of a step on so many ranks."""
        step = self.step(world_size)
        return step_memory(step, self._target, self._batch_size, is_traced=world_size in self._traced)

    def step(self, world_size: int) -> Timeline:
        """The timeline of a step on so many ranks."""
        if not self._is_sharded:
            return self._traced[self._world_size]
        if world_size not in self._traced:
            if (step := self._scaled(world_size)) is not None:
                return step
            self._traced[world_size], _ = self._trace(world_size)
        return self._traced[world_size]

    def smallest(self, limit: int, numbers: Sequence[int]) -> int | None:
        """The smallest number of ranks on which each stays within `limit` bytes (see `step_memory.fits`).

        It is looked for below the first of `numbers`, which lie in order, that is enough; None if none of them is.
        """
        fitting = next((number for number in numbers if self._fits(number, limit)), None)
        if fitting is None or fitting == numbers[0]:
            return fitting
        low = max(number for number in numbers if number < fitting)
        return low + 1 + bisect_left(range(low + 1, fitting), True, key=lambda number: self._fits(number, limit))

    def _fits(self, world_size: int, limit: int) -> bool:
        return fits(self.step(world_size), self._target, limit)

    def _scaled(self, world_size: int) -> Timeline | None:
        step = None if self._divided is None else self._divided.at(world_size)
        while step is None and self._primes:
            prime = self._primes.pop(0)
            self._traced[prime], _ = self._trace(prime)
            try:
                self._divided = DividedStep(self._traced, self._shards)
            except NotDividedError:
                self._divided, self._primes = None, []
                break
            step = self._divided.at(world_size)
        return step
