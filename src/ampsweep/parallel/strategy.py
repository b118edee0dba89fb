"""The choice of the parallel strategy."""

from typing import TYPE_CHECKING

import torch

from ampsweep.config.schema import ParallelConfig
from ampsweep.parallel.base import SINGLE, Parallel

if TYPE_CHECKING:
    from ampsweep.parallel.group import Group


def make_parallel(config: ParallelConfig, group: "Group | None", device: torch.device) -> Parallel:
    """Make the strategy of a rank, or of a single process; torch.distributed is imported for ranks only."""
    if config.strategy == "single" or group is None:
        return SINGLE
    if config.strategy == "ddp":
        from ampsweep.parallel.ddp import Replicated

        return Replicated(config, group, device)
    from ampsweep.parallel.fsdp2 import Sharded

    return Sharded(config, group, device)
