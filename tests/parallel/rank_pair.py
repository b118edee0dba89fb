"""Two ranks in long-lived processes of their own, which call functions of `cases` and `saved_trainings` for tests."""

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

WORLD_SIZE = 2


class CaseError(Exception):
    """Raised for the error of a case on a rank, with its traceback."""


class RankPair:
    """Two processes in one gloo group. A case that fails on one of them ends both; the next case starts new ones."""

    def __init__(self):
        self._processes, self._pipes = [], []

    def run(self, name, /, **arguments):
        """Call `module.function(rank, **arguments)` on both ranks; returns their results."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((name, arguments))
        found, faults = [], []
        for rank, pipe in enumerate(self._pipes):
            is_error, answer = True, "does not answer"
            if pipe.poll(120.0 if not faults else 1.0):
                with contextlib.suppress(EOFError):
                    is_error, answer = pipe.recv()
            found.append(answer)
            if is_error:
                faults.append(f"on rank {rank}: {answer}")
        if faults:
            self.end()  # the other rank may be within a collective
            raise CaseError("\n".join(faults))
        return found

    def _start(self):
        context = multiprocessing.get_context("spawn")
        store = tempfile.mkdtemp(prefix="rank-pair-")
        for rank in range(WORLD_SIZE):
            ours, theirs = context.Pipe()
            name = f"{LASTING} rank {rank}"
            process = context.Process(target=_serve, args=(theirs, rank, f"{store}/store"), daemon=True, name=name)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def end(self):
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


def _serve(pipe, rank, store):
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("error")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD_SIZE), rank=rank, world_size=WORLD_SIZE)
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, arguments = pipe.recv()
            module, _, function = name.partition(".")
            try:
                answer = False, getattr(importlib.import_module(module), function)(rank, **arguments)
            except Exception:  # noqa: BLE001 - whatever the case raises is the answer
                answer = True, traceback.format_exc()
            pipe.send(answer)
