"""The strategy of a training's configuration, as an object for this rank."""

from typing import TYPE_CHECKING

import torch

from ampsweep.config.schema import ParallelConfig
from ampsweep.parallel.base import SINGLE, Parallel

if TYPE_CHECKING:
    from ampsweep.parallel.group import Group


def make_parallel(config: ParallelConfig, group: "Group | None", device: torch.device) -> Parallel:
    """Make the strategy of a rank that has joined the others; without others it is the single process.

    What torch needs for several ranks is imported here, where there are some.
    """
    if config.strategy == "single" or group is None:
        return SINGLE
    if config.strategy == "ddp":
        from ampsweep.parallel.ddp import Replicated

        return Replicated(config, group, device)
    from ampsweep.parallel.fsdp2 import Sharded

    return Sharded(config, group, device)
