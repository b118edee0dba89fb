"""Functions that both ranks call for the tests; each gets its rank, and returns what can be pickled."""

import resource
import tempfile
import time
from functools import partial
from itertools import count

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from trainings import Training, assert_same, by_hand, profiled_collectives, seeded

from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.parallel.rank_environment import RankPlace
from ampsweep.run.rank import held_devices
from ampsweep.training.resume import keep_weights


def train(rank, config, **trouble):
    """Train by losses without chance, on the second rank with trouble; returns rows, whole parameters and summary."""
    training = Training(config, rank, loss=partial(troubled, **trouble) if rank else seeded).train()
    return training.rows, training.parameters(), training.trainer.instruments.summary()


def troubled(loss, slow_s=0.0, nan_at=None):
    """A loss that takes its time, and is NaN at one of its calls."""
    numbers = count(1)

    def computed(model, batch):
        time.sleep(slow_s)
        found = seeded(loss)(model, batch)
        return found * float("nan") if next(numbers) == nan_at else found

    return computed


def evaluated(rank, config, place):
    """Evaluate, and keep the weights; returns the evaluation, what was kept, and the whole parameters."""
    place.mkdir(exist_ok=True)
    training = Training(config, rank)
    kept = keep_weights(training.trainer, place, "best")
    return training.trainer.evaluate(), kept, training.parameters()


def kept_without_room(rank, config, place):
    """Keep weights while rank 0 may write no more than 2 kB; returns the error."""
    training, limits = Training(config, rank), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000 if rank == 0 else limits[0], limits[1]))
    try:
        keep_weights(training.trainer, place, "final")
    except OSError as error:
        return error.errno, error.filename
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def train_and_by_hand(rank, config):
    """Train, and by hand to the same bits: rows, whole parameters, and the losses and scales of the loop by hand."""
    training = Training(config, rank).train()
    losses, scales, parameters = by_hand(rank, config)
    assert_same(training.parameters(), parameters)
    return training.rows, parameters, losses, scales


def collectives_of_a_step(rank, configs):
    """Take two steps, and a third under the profiler: what was handed to reductions, and its bytes by our count."""
    found = []
    for config in configs:
        trainer = Training(config, rank, loss=seeded).trainer
        trainer.model.train()
        with trainer.precision.flags():
            for _ in range(2):
                trainer.train_step()
            before = trainer.parallel.reduced_bytes
            with profiled_collectives() as seen:
                trainer.train_step()
        found.append((seen.reduced, trainer.parallel.reduced_bytes - before))
    return found


def waits_of_steps(rank, config, slow_s):
    """Take four steps with a slow second rank: of the last two the ms that this rank waited, the ms that gloo was busy,
    and the number of waits."""
    trainer = Training(config, rank, loss=partial(troubled, slow_s=slow_s) if rank else None).trainer
    waits, found = trainer.parallel.waits, []
    trainer.model.train()
    with trainer.precision.flags():
        for _ in range(2):
            trainer.train_step()
        for _ in range(2):
            waits.begin_step(time.perf_counter)
            with profiled_collectives() as seen:
                trainer.train_step()
            spans = waits.end_step()
            found.append((1e3 * sum(end - begin for begin, end in spans), seen.busy_ms, len(spans)))
    return found


def error_of(rank, config, grows_alone=False):
    """Train, perhaps with a scale that grows on the second rank alone; returns the error."""
    training = Training(config, rank)
    if grows_alone and rank:
        training.trainer.precision.scaler._growth_interval = 1
    try:
        training.train()
    except RuntimeError as error:
        return str(error)
    return None


def hold_devices(rank, folder, local_ranks):
    """Hold the CPU as a launcher's rank with a local number; returns what is said, and when it was held."""
    tempfile.tempdir = folder  # where its lock is
    place = RankPlace(rank, 2, local_ranks[rank], max(local_ranks) + 1, "localhost", 0, has_store=True)
    store = PrefixStore(folder, dist.distributed_c10d._get_default_store())
    said = []
    with held_devices("cpu", place, store, said.append, StopRequest()):
        return said, time.time()


def whole_and_in_two(rank, config, place):
    """The facts of a training at its checkpoint and its end, and of another that goes on from the checkpoint."""
    whole = Training(config, rank, place=place).train()
    ended = whole.facts()
    again = Training(config, rank)
    notes, restored = again.resume(place), again.facts()
    return {
        "saved": whole.saved,
        "ended": ended,
        "restored": restored,
        "resumed": again.train().facts(),
        "notes": notes,
    }


def resumed(rank, config, path):
    """The facts and notes of a training that has resumed, and goes on."""
    training = Training(config, rank)
    notes, facts = training.resume(path), training.facts()
    training.train()
    return facts, notes


def save_without_room(rank, config, place, full):
    """Save, then twice while the rank `full` may write no more than 2 kB, then with room; returns both errors."""
    training, errors = Training(config, rank).train(), []
    training.save(place)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000 if rank == full else limits[0], limits[1]))
        try:
            training.save(place)
        except OSError as error:
            errors.append((error.errno, error.strerror, error.filename))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    training.save(place)
    return errors
