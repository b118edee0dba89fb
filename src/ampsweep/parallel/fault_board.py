"""The board of a training's faults, which is in the store that all ranks share."""

import json
from dataclasses import asdict
from typing import Final

from torch._C._distributed_c10d import Store

from ampsweep.parallel.faults import RankFault
from ampsweep.record.outcome import OutOfMemory

_KEY: Final = "fault"


class FaultBoard:
    """The place that holds the first fault of any rank.

    Every method raises RuntimeError where the store is gone.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, fault: RankFault) -> RankFault:
        """Post a fault, unless there is one; returns the first."""
        told: bytes = self._store.compare_set(_KEY, "", json.dumps(asdict(fault)))
        return _of_json(told)

    def read(self) -> RankFault | None:
        """The first fault; None while there is none."""
        return _of_json(self._store.get(_KEY)) if self._store.check([_KEY]) else None


def _of_json(told: bytes) -> RankFault:
    values = json.loads(told)
    oom = values.pop("oom")
    return RankFault(**values, oom=None if oom is None else OutOfMemory(**oom))
