"""Two ranks in long-lived processes of their own, which call functions of `cases` for tests."""

import contextlib
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from children import LASTING

WORLD_SIZE = 2


class RankPair:
    """Two processes in one gloo group. A case that fails on one of them ends both; the next case starts new ones."""

    def __init__(self):
        self._ranks = []

    def run(self, name, /, **arguments):
        """Call `cases.NAME(rank, **arguments)` on both ranks; returns their results."""
        if not self._ranks:
            self._start()
        for pipe, _ in self._ranks:
            pipe.send((name, arguments))
        found, faults = [], []
        for rank, (pipe, _) in enumerate(self._ranks):
            is_error, answer = True, "does not answer"
            if pipe.poll(1.0 if faults else 120.0):
                with contextlib.suppress(EOFError):
                    is_error, answer = pipe.recv()
            found.append(answer)
            faults += [f"on rank {rank}: {answer}"] if is_error else []
        if faults:
            self.end()  # the other rank may be within a collective
            raise RuntimeError("\n".join(faults))
        return found

    def _start(self):
        context = multiprocessing.get_context("spawn")
        store = tempfile.mkdtemp(prefix="rank-pair-")
        for rank in range(WORLD_SIZE):
            ours, theirs = context.Pipe()
            arguments, name = (theirs, rank, f"{store}/store"), f"{LASTING} rank {rank}"
            process = context.Process(target=_serve, args=arguments, daemon=True, name=name)
            process.start()
            theirs.close()
            self._ranks.append((ours, process))

    def end(self):
        for pipe, process in self._ranks:
            pipe.close()
            process.kill()
            process.join()
        self._ranks = []


def _serve(pipe, rank, store):
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("error")
    import cases
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD_SIZE), rank=rank, world_size=WORLD_SIZE)
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, arguments = pipe.recv()
            try:
                answer = False, getattr(cases, name)(rank, **arguments)
            except Exception:  # noqa: BLE001 - whatever the case raises is the answer
                answer = True, traceback.format_exc()
            pipe.send(answer)
