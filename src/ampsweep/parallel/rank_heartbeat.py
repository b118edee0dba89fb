"""Heartbeats of the ranks: a fault or the silence of a rank ends the training on all of them."""

import os
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec
from torch.distributed import Store  # type: ignore[attr-defined]  # public by torch's docs

from ampsweep.parallel.base import RankFault
from ampsweep.records.reading import converted

Report = Callable[[RankFault], None]
_KEY: Final = "fault"
_BEAT_S: Final = 0.5
_SILENT_S: Final = 60.0  # a rank without a beat for this long is lost; a library that holds the GIL may delay beats
_LEFT_S: Final = 3.0  # limit of the main thread to notice a fault itself, by communication that fails


class RankHeartbeat:
    """Beats for this rank, looks for a posted fault, and posts a fault for a silent rank, in its own thread. Rank 0
    watches all others, rank 1 watches rank 0. See `group.joined` for `report` and `end`."""

    def __init__(self, store: Store, rank: int, world_size: int, report: Report, end: Report) -> None:
        self._store, self._rank, self._report, self._end = store, rank, report, end
        watched = range(1, world_size) if rank == 0 else [0] if rank == 1 else []
        self._beats = {other: (b"", time.monotonic()) for other in watched}  # each rank's last beat, and its time
        self._fault: RankFault | None = None
        self._beat(0)  # before anything else, so that an early loss is noticed
        self._is_over = threading.Event()
        self._has_noticed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()

    def cause(self, fault: RankFault, *, may_follow: bool) -> RankFault:
        """Post this rank's fault, unless there is an earlier one, and return the first. If it `may_follow` from another
        rank's fault, wait for that to be posted."""
        self._has_noticed.set()
        deadline_s = time.monotonic() + _LEFT_S
        try:
            while may_follow and time.monotonic() < deadline_s:
                if (first := self._posted()) is not None:
                    return first
                time.sleep(0.05)
            return self._post(self._lost() or fault if may_follow else fault)
        except RuntimeError:  # the rank or launcher that served the store is dead
            return self._fault or fault

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        number = 0
        seen_s: float | None = None
        while not self._is_over.wait(_BEAT_S):
            number += 1
            try:
                self._beat(number)
                if self._fault is None:
                    self._fault = self._posted() or self._silent()
            except RuntimeError:
                continue  # the main thread notices by its own communication, or by its parent's death
            if self._fault is None or self._has_noticed.is_set():
                continue
            if seen_s is None:
                seen_s = time.monotonic()
                self._report(self._fault)
            if time.monotonic() - seen_s > _LEFT_S:
                try:
                    self._end(self._fault)
                finally:
                    os._exit(1)

    def _post(self, fault: RankFault) -> RankFault:
        """Post a fault unless there is one; return the first. RuntimeError: the store is gone."""
        first: bytes = self._store.compare_set(_KEY, "", msgspec.json.encode(fault).decode())
        return converted(msgspec.json.decode(first), RankFault)

    def _posted(self) -> RankFault | None:
        return converted(msgspec.json.decode(self._store.get(_KEY)), RankFault) if self._store.check([_KEY]) else None

    def _beat(self, number: int) -> None:
        self._store.set(f"beat/{self._rank}", str(number))

    def _silent(self) -> RankFault | None:
        for rank, (last, changed_s) in self._beats.items():
            key, now_s = f"beat/{rank}", time.monotonic()
            if self._store.check([key]) and (beat := self._store.get(key)) != last:
                self._beats[rank] = beat, now_s
            elif (silent_s := now_s - changed_s) > _SILENT_S:
                error = f"it stopped answering {silent_s:.0f} s ago"
                return self._post(RankFault(rank=rank, status="failed", error=error))
        return None

    def _lost(self) -> RankFault | None:
        """A fault for a watched rank that has stopped beating."""
        for rank, (last, changed_s) in self._beats.items():
            if last and time.monotonic() - changed_s > 3 * _BEAT_S:
                error = "it was lost: its process or its machine ended"
                return RankFault(rank=rank, status="failed", error=error, is_guess=True)
        return None
