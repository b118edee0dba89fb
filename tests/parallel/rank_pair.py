"""Two ranks in long-lived processes of their own, which call functions of `cases` and `trainings` for the tests."""

import contextlib
import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from children import LASTING

_HERE = str(Path(__file__).parent)
_LIMIT_S = 120.0


class CaseError(Exception):
    """Raised for the error of a case on a rank, with its traceback."""


class RankPair:
    """Two processes in one gloo group. A case that fails on one of them ends both; the next one finds new ones."""

    def __init__(self, world_size=2):
        self.world_size = world_size
        self._processes, self._pipes = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()

    def run(self, name, /, **arguments):
        """Call `module.function` on both ranks, with this rank's `place` first; returns what each returned."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((name, arguments))
        found, faults = [], []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(_LIMIT_S if not faults else 1.0):
                faults.append(f"rank {rank} does not answer")
                continue
            try:
                is_error, answer = pipe.recv()
            except EOFError:
                is_error, answer = True, "its process has ended"
            if is_error:
                faults.append(f"on rank {rank}: {answer}")
            found.append(answer)
        if faults:
            if len(found) < self.world_size or len(faults) < self.world_size:
                self._end()  # one may have left the other within a collective
            raise CaseError("\n".join(faults))
        return found

    def _start(self):
        context = multiprocessing.get_context("spawn")
        self._store = tempfile.mkdtemp(prefix="rank-pair-")
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, self.world_size, f"{self._store}/store")
            process = context.Process(target=_serve, args=arguments, daemon=True, name=f"{LASTING} rank {rank}")
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _end(self):
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


def _serve(pipe, rank, world_size, store):
    sys.path.insert(0, _HERE)
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("error")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        module, _, function = name.partition(".")
        try:
            answer = False, getattr(importlib.import_module(module), function)(rank, **arguments)
        except Exception:  # noqa: BLE001 - whatever the case raises is the answer
            answer = True, traceback.format_exc()
        with contextlib.suppress(OSError):
            pipe.send(answer)
