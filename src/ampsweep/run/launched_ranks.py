"""A function called on several ranks of this machine, which torch's elastic launcher starts and watches."""

import logging
import os
import pickle
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection
from typing import Any, Final, Generic

import psutil

from ampsweep.launch.child import Fault, NamedFunction, Outbox, Result, work
from ampsweep.launch.processes import METHODS, SLOW_IMPORTS, start_fork_server
from ampsweep.launch.signals import StopRequest
from ampsweep.text import one_line

_TICK_S: Final = 0.1
_LEFT_S: Final = 4.0
"""The time that the others have to end by themselves once one rank has ended badly."""


@dataclass
class RankExit(Generic[Result]):
    """The end of one rank."""

    rank: int
    pid: int | None = None
    result: Result | None = None
    fault: Fault | None = None
    """The error that it ended with, as it told itself."""
    signal: int | None = None
    """The signal that killed it, if it was the first to end badly; so for the exit code."""
    exit_code: int | None = None
    has_ended: bool = False


@dataclass
class _Rank(Generic[Result]):
    exit: RankExit[Result]
    pipe: Connection
    is_open: bool = True
    process: psutil.Process | None = None


def run_ranks(
    target: NamedFunction[Result],
    args: tuple[object, ...],
    num_ranks: int,
    *,
    on_message: Callable[[object], None],
    stop: StopRequest,
    watch: Callable[[], bool] = lambda: False,
    grace_s: float = 60.0,
) -> list[RankExit[Result]]:
    """Call `target` with `args` on so many ranks, each a process of its own, and wait until all have ended.

    Messages of all ranks are handed to `on_message`. A request to stop is passed on to each. When one rank has ended
    badly, or `watch`, which is called ten times a second, says that one is lost, the others are killed four seconds
    later, if they have not ended by themselves.
    """
    order = pickle.dumps((target, args))
    pipes = [Pipe() for _ in range(num_ranks)]
    ranks: list[_Rank[Result]] = [_Rank(RankExit(number), ours) for number, (ours, _) in enumerate(pipes)]
    exit_codes: dict[int, int] = {}
    faults: list[Fault] = []
    theirs = [theirs for _, theirs in pipes]
    # In a thread of its own: in the main one the launcher would set signal handlers, and end the ranks at a signal.
    launched = threading.Thread(
        target=_launch, args=(order, theirs, grace_s, exit_codes, faults), name="elastic", daemon=True
    )
    launched.start()
    _Following(ranks, on_message, stop, watch, grace_s).until(launched)
    launched.join()
    for number, code in exit_codes.items():
        ranks[number].exit.signal = -code if code < 0 else None
        ranks[number].exit.exit_code = code if code > 0 else None
    if faults and ranks[0].exit.fault is None:
        ranks[0].exit.fault = faults[0]
    return [rank.exit for rank in ranks]


def _launch(
    order: bytes, pipes: Sequence[Connection], grace_s: float, exit_codes: dict[int, int], faults: list[Fault]
) -> None:
    """Have torch's elastic launcher run the ranks.

    `exit_codes` gets that of the first that ended badly, `faults` an error of the launcher itself.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what it would say the record says
    logs = tempfile.mkdtemp(prefix="ampsweep-ranks-")
    try:
        # Here, where it holds the stop signals back: those that reach every process would end the server and its ranks.
        start_fork_server([*SLOW_IMPORTS, "torch.distributed.fsdp", "torch.distributed.tensor"])
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=len(pipes),
            run_id=f"ampsweep-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=_TICK_S,
            start_method=METHODS[0],
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        elastic_launch(config, serve_rank)(order, [*pipes], grace_s)
    except ChildFailedError as error:
        exit_codes |= {rank: failure.exitcode for rank, failure in error.failures.items()}
    except Exception as error:  # noqa: BLE001  whatever the launcher raises, the run has not begun, or is lost
        faults.append(Fault(f"the ranks could not be started: {one_line(error)}", traceback.format_exc()))
    finally:
        for pipe in pipes:
            pipe.close()
        shutil.rmtree(logs, ignore_errors=True)


def serve_rank(order: bytes, pipes: Sequence[Connection], grace_s: float) -> None:
    """Call the function of `order` on this rank, and report through its own one of `pipes`."""
    rank = int(os.environ["LOCAL_RANK"])
    for number, pipe in enumerate(pipes):
        if number != rank:
            pipe.close()
    outbox = Outbox(pipes[rank])
    outbox.put("message", RankStarted(rank, os.getpid()))
    work(pipes[rank], outbox, order, grace_s)


@dataclass(frozen=True)
class RankStarted:
    """A message: the process of a rank has begun."""

    rank: int
    pid: int


class _Following(Generic[Result]):
    """The wait for the ranks' ends."""

    def __init__(
        self,
        ranks: Sequence[_Rank[Result]],
        on_message: Callable[[object], None],
        stop: StopRequest,
        watch: Callable[[], bool],
        grace_s: float,
    ) -> None:
        self._ranks, self._on_message, self._stop, self._watch, self._grace_s = ranks, on_message, stop, watch, grace_s
        self._deadline_s: float | None = None
        self._has_asked = self._has_killed = False

    def until(self, launched: threading.Thread) -> None:
        """Follow the ranks until their launcher has ended."""
        while launched.is_alive():
            self._hear(_TICK_S)
            now_s = time.monotonic()
            if self._stop.requested and not self._has_asked:
                self._has_asked = True
                self._ask(self._stop.reason)
                self._end_within(self._grace_s)
            if self._watch() or any(self._has_failed(rank) for rank in self._ranks):
                self._end_within(_LEFT_S)
            if self._deadline_s is not None and now_s > self._deadline_s and not self._has_killed:
                self._has_killed = True
                for rank in self._ranks:
                    if rank.process is not None:
                        with suppress(psutil.Error):
                            rank.process.kill()
        while self._hear(0):
            pass

    def _end_within(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        self._deadline_s = deadline_s if self._deadline_s is None else min(self._deadline_s, deadline_s)

    def _ask(self, reason: str) -> None:
        for rank in self._ranks:
            with suppress(OSError):  # it has just ended
                rank.pipe.send(reason)

    def _has_failed(self, rank: _Rank[Result]) -> bool:
        """Tell whether the rank has ended without a result."""
        end = rank.exit
        if not end.has_ended and rank.process is not None and not _is_alive(rank.process):
            while self._hear(0):
                pass
            end.has_ended = True
        return end.fault is not None or (end.has_ended and end.result is None)

    def _hear(self, timeout_s: float) -> bool:
        """Take what the ranks have sent; return True if there was anything."""
        heard = False
        by_pipe = {rank.pipe: rank for rank in self._ranks if rank.is_open}
        if not by_pipe:
            time.sleep(timeout_s)
            return False
        for pipe in connection.wait([*by_pipe], timeout_s):
            rank = by_pipe[pipe]  # type: ignore[index]
            try:
                kind, value = pickle.loads(rank.pipe.recv_bytes())
            except (EOFError, OSError):
                rank.is_open = False
                continue
            heard = True
            self._take(rank, kind, value)
        return heard

    def _take(self, rank: _Rank[Result], kind: str, value: Any) -> None:
        if isinstance(value, RankStarted):
            rank.exit.pid = value.pid
            with suppress(psutil.Error):
                rank.process = psutil.Process(value.pid)
        elif kind == "message":
            self._on_message(value)
        elif kind == "result":
            rank.exit.result = value
        elif kind == "error":
            rank.exit.fault = value


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
