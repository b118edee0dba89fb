"""Training steps taken on real ranks, gloo's on this machine, with what each of them takes in memory."""

import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from steps import CPU, composed
from torch import multiprocessing

from ampsweep.observe.step import TracedStep, trace_step
from ampsweep.parallel.place import RankPlace
from ampsweep.parallel.strategy import make_parallel
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data
from ampsweep.training.trainer import Trainer

Overrides = Sequence[str]


def measured_on_ranks(cases: Sequence[Overrides], world_size: int) -> list[list[TracedStep | str]]:
    """What a step of each training did on each rank, or one line on why there was none."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_rank, (world_size, _free_port(), cases, folder), nprocs=world_size)
        ranks = [torch.load(Path(folder, str(rank)), weights_only=False) for rank in range(world_size)]
    return [[*of_case] for of_case in zip(*ranks, strict=True)]


class JoinedPlace:
    """The place of a rank in the group that torch has, without a watch on the others."""

    def __init__(self, place: RankPlace) -> None:
        self.place = place


def _rank(rank: int, world_size: int, port: int, cases: Sequence[Overrides], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=world_size)
    place = RankPlace(rank, world_size, rank, world_size, "localhost", port, has_store=False)
    torch.save([_step(case, place) for case in cases], Path(folder, str(rank)))
    dist.destroy_process_group()


def _step(overrides: Overrides, place: RankPlace) -> TracedStep | str:
    config = composed(*overrides)
    parallel = make_parallel(config.parallel, JoinedPlace(place), CPU)
    try:
        built = build(config, CPU, build_data(config, CPU), parallel)
        trainer = assemble_trainer(config, built, CPU)
        trainer.model.train()
        with built.precision.flags():
            trainer.train_step()
            trainer.train_step()  # in which DDP tells the ranks its new buckets: gloo's thread holds that for a moment
            return _traced(trainer)
    except (RuntimeError, TypeError, ValueError) as error:  # the same on all ranks, so that the next case can go on
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _traced(trainer: Trainer) -> TracedStep:
    with trace_step(trainer.model, *trainer.optimizers.values()) as trace:
        trainer.train_step()
    return trace.result


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port: int = taken.getsockname()[1]
        return port
