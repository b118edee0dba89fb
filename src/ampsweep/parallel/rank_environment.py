"""The rank of this process, from the environment variables of torchrun."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ampsweep.config.errors import UserError

VARIABLES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun and similar launchers set for each process."""

_STORE_IS_SERVED: Final = "TORCHELASTIC_USE_AGENT_STORE"


@dataclass(frozen=True)
class RankPlace:
    """A rank, and the address of the ranks' store."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    has_store: bool  # True if the launcher serves the store, else rank 0 does


def place_in(environment: Mapping[str, str] = os.environ) -> RankPlace | None:
    """Read the place of this process, None if it is no rank; UserError: a wrong or missing variable."""
    if not {"RANK", "WORLD_SIZE"} <= environment.keys():
        return None
    missing = [name for name in VARIABLES if name not in environment]
    if missing:
        raise UserError(f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}: start the ranks with torchrun")
    numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    try:
        rank, world_size, local_rank, local_world_size, port = (int(environment.get(name, "1")) for name in numbers)
    except ValueError as error:
        raise UserError(f"RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_PORT: {error}") from error
    has_store = environment.get(_STORE_IS_SERVED) == "True"
    return RankPlace(rank, world_size, local_rank, local_world_size, environment["MASTER_ADDR"], port, has_store)


def place_variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The variables of a rank on this machine, whose launcher serves the store at ``port``."""
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    places = {name: str(number) for name, number in numbers.items()}
    return places | {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), _STORE_IS_SERVED: "True"}
