"""Functions that both ranks call for the tests; each gets its rank, and returns what can be pickled."""

import tempfile
import time

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from trainings import Collectives, assemble, by_hand, same, seeded

from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.nested_tensors import plain_tensors_in
from ampsweep.parallel.rank_environment import RankPlace
from ampsweep.run.rank import held_devices
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume, take_checkpoint


def train(rank, config):
    """Train by losses without chance; returns rows and whole parameters."""
    training = assemble(config, rank, loss=seeded)
    training.train()
    buffers = {name: buffer.clone() for name, buffer in training.built.model.named_buffers()}
    return training.rows, training.parameters(), buffers


def train_and_by_hand(rank, config):
    """Train, and by hand: rows and whole parameters, and the loop's losses, scales, and if its parameters are the same
    bits."""
    training = assemble(config, rank)
    training.train()
    losses, scales, parameters = by_hand(rank, config)
    return {
        "rows": training.rows,
        "parameters": training.parameters(),
        "losses": losses,
        "scales": scales,
        "is_same": same(training.parameters(), parameters),
    }


def collectives_of_a_step(rank, configs):
    """Take two steps, and a third one under the profiler: what was handed to reductions, and its bytes by our count."""
    found = []
    for config in configs:
        training = assemble(config, rank, loss=seeded)
        trainer = training.trainer
        trainer.model.train()
        with trainer.precision.flags():
            for _ in range(2):
                trainer.train_step()
            before = trainer.parallel.reduced_bytes
            with Collectives() as seen:
                trainer.train_step()
        found.append((seen.reduced(), trainer.parallel.reduced_bytes - before))
    return found


def waits_of_steps(rank, config, slow_rank=None, slow_s=0.0):
    """Take four steps, the last two timed: ms that each waited, and what gloo was busy for on the way.

    The slow rank sleeps before each loss.
    """
    training = assemble(config, rank, loss=lambda loss: _slowed(loss, slow_s) if rank == slow_rank else loss)
    trainer = training.trainer
    waits = trainer.parallel.waits
    found = []
    trainer.model.train()
    with trainer.precision.flags():
        for _ in range(2):
            trainer.train_step()
        for _ in range(2):
            waits.begin_step(time.perf_counter)
            with Collectives() as seen:
                trainer.train_step()
            stretches = waits.end_step()
            busy = sum(end - begin for begin, end in seen.spans) / 1e3
            found.append((sum(1e3 * (end - begin) for begin, end in stretches), busy, len(stretches)))
    return found


def _slowed(loss, seconds):
    def slowly(model, batch):
        time.sleep(seconds)
        return loss(model, batch)

    return slowly


def train_slowed(rank, config, slow_s):
    """Train with a slow second rank; returns this rank's rows and summary."""
    training = assemble(config, rank, loss=lambda loss: _slowed(loss, slow_s) if rank else loss)
    training.train()
    return training.rows, training.trainer.instruments.summary()


def nan_on_one_rank(rank, config, at_step):
    """Train, with a loss that is NaN on the second rank at one step; returns rows and parameters."""
    count = iter(range(1, 100))

    def sick(loss):
        def computed(model, batch):
            value = loss(model, batch)
            return value * float("nan") if next(count) == at_step and rank == 1 else value

        return computed

    training = assemble(config, rank, loss=sick)
    ending = training.train()
    return ending.status, training.rows, training.parameters()


def disagree(rank, config):
    """Train with another scale on the second rank; returns the error."""
    training = assemble(config, rank)
    if rank == 1:
        training.trainer.precision.scaler._growth_interval = 1  # grows, while the other's does not
    try:
        training.train()
    except RuntimeError as error:
        return str(error)
    return None


def hold_devices(rank, folder, local_ranks):
    """Hold the CPU as a rank with this number of a launcher does; returns what is said, and when it was held."""
    tempfile.tempdir = folder  # where its lock is
    place = RankPlace(rank, 2, local_ranks[rank], max(local_ranks) + 1, "localhost", 0, has_store=True)
    store = PrefixStore(folder, dist.distributed_c10d._get_default_store())
    said = []
    with held_devices("cpu", place, store, said.append, StopRequest()):
        return said, time.time()


def torchao_facts(training):
    optimizer = training.built.optimizers["optimizer"]
    states = optimizer.state_dict()["state"]
    return training.parameters(), [[tensor.clone() for tensor in plain_tensors_in(state)] for state in states.values()]


def torchao_whole_and_in_two(rank, config, place):
    """The facts at the end of a training, of one that stopped after two steps, and of one that went on from there."""
    unbroken = assemble(config, rank)
    unbroken.train()
    first = assemble(config, rank)
    first.trainer.num_steps = 2
    first.train()
    take_checkpoint(first.trainer, place, "hash", "mlp", "arm")
    second = assemble(config, rank)
    found = find_checkpoint(place / "checkpoints/last", second.built.parallel)
    notes = resume(second.trainer, found)
    restored = torchao_facts(second)
    second.train()
    return {
        "unbroken": torchao_facts(unbroken),
        "saved": torchao_facts(first),
        "restored": restored,
        "resumed": torchao_facts(second),
        "notes": notes,
    }
