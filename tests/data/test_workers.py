"""Workers read ahead the same batches as this process, and failures in them are reported in one sentence."""

import gc
import multiprocessing
import os
import random
import re
import signal
from functools import partial
from multiprocessing import resource_sharer
from threading import Timer

import numpy as np
import psutil
import pytest
import torch
from children import children
from every_data import same
from own_datasets import Augmented, Read, drawn, fail

from ampsweep.data.map_dataset import MapDataset
from ampsweep.observe.feeding import fed
from ampsweep.observe.host_memory import measure_host_peak
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.text import GIB

CPU = torch.device("cpu")
DEAD = r"DataLoader worker \(pid\(?s?\)? \d+\) (is killed by|exited unexpectedly)"


@pytest.fixture
def make(opened):
    def make(train=None, **changes):
        settings = {"batch_size": 4, "seed": 3, "device": CPU, "num_workers": 2} | changes
        return opened(MapDataset(train=train or Augmented(), val=Augmented(10), **settings))

    return make


def batches_of(data, indices=range(14)):
    return [data.train_batch(index) for index in indices]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_any_number_of_workers_reads_the_same_batches(make, num_workers):
    data, expected = make(num_workers=num_workers, prefetch_factor=3), batches_of(make(num_workers=0), range(20))
    for indices in (range(14), range(9, 12), [19, 2], range(3)):
        assert same(batches_of(data, indices), [expected[index] for index in indices])
    assert len(children()) == num_workers


def test_validation_has_workers_of_its_own(make):
    data, expected = make(), [*make(num_workers=0).val_batches()]
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    batches_of(data)
    assert same([*data.val_batches()], expected)
    assert torch.equal(torch.get_rng_state(), before[0]), "the training's own random numbers are left alone"
    assert (random.getstate(), str(np.random.get_state())) == before[1:]
    assert len(children()) == 2, "those of the validation have ended with it"
    data.stop_workers()
    batches = make().val_batches()
    for number, has_workers in enumerate((False, True)):
        assert same(next(batches), expected[number])
        assert bool(children()) == has_workers, "one batch alone starts none"
    batches.close()
    assert children() == []


def test_checks_predictions_and_traced_steps_start_no_worker(make):
    data, on_meta = make(), make(device=torch.device("meta"))
    batches_of(data, [0, 0])
    with measure_host_peak():
        batches_of(data, range(3))
    batches_of(on_meta)
    assert on_meta.num_workers == len(children()) == 0
    data.train_batch(3)
    assert len(children()) == 2


def test_memory_limits_and_traces_end_where_a_worker_begins(make):
    data, limit = make(), MemoryLimit(CPU, 300 / GIB)  # a batch has 192 bytes, and is made of as many
    for index, expected in enumerate(batches_of(make(num_workers=0), range(5))):
        with limit:
            batch = fed(data.train_batch, index)
        assert torch.equal(batch, expected)
        del batch
    data = make(Read(lambda item: torch.tensor(torch._C._len_torch_dispatch_stack())))
    with MemoryLimit(CPU, 1.0):
        here, there = fed(data.train_batch, 0), fed(data.train_batch, 1)
    assert (here.tolist(), there.tolist()) == ([1] * 4, [0] * 4)


def test_workers_end_with_their_data():
    data = MapDataset(train=Augmented(), val=Augmented(), batch_size=4, seed=0, device=CPU, num_workers=2)
    batches_of(data, range(3))
    assert len(children()) == 2
    del data
    gc.collect()
    assert children() == []


@pytest.mark.parametrize(
    ("fails", "error", "sentence"),
    [
        (partial(fail, RuntimeError("item 5")), ValueError, r"RuntimeError: item 5 \(.*own_datasets.py, line \d+\)"),
        (partial(fail, SystemExit(3)), ValueError, r"ended by sys.exit\(3\) \(.*own_datasets.py, line \d+\)"),
        (partial(fail, MemoryError("none left")), MemoryError, r"none left \(.*own_datasets.py, line \d+\)"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), RuntimeError, f"{DEAD}.*"),
        (partial(os._exit, 7), RuntimeError, f"{DEAD}.*"),
    ],
    ids=["raises", "exits", "has no memory", "is killed", "leaves"],
)
def test_a_failing_worker_is_reported_in_one_sentence(make, fails, error, sentence, capfd):
    with pytest.raises(error) as raised:
        batches_of(make(Read(lambda item: fails() if item == 5 else drawn(item)), collate=torch.stack))
    assert re.fullmatch(sentence, str(raised.value), re.DOTALL)
    assert children() == []
    assert capfd.readouterr() == ("", "")


def test_a_worker_whose_connections_end_first_is_named(make, monkeypatch):
    def cut_off(ident):
        for worker in children():
            Timer(0.1, worker.kill).start()
        raise ConnectionResetError

    for cuts, error, sentence in (
        (cut_off, RuntimeError, DEAD),
        (lambda ident: fail(OSError(24, "Too many open files")), OSError, "Too many open files"),
    ):
        monkeypatch.setattr(resource_sharer._ResourceSharer, "get_connection", staticmethod(cuts))
        with pytest.raises(error, match=sentence):
            batches_of(make())
        assert children() == []


def test_stop_signals_do_not_reach_the_workers(make):
    data = make()
    batches_of(data, range(2))
    for worker in children():
        for number in (signal.SIGINT, signal.SIGTERM):
            psutil.Process(worker.pid).send_signal(number)
    assert same(batches_of(data, range(2, 14)), batches_of(make(num_workers=0))[2:])


def test_batches_that_cannot_be_pickled_are_reported(make):
    data = make(Read(lambda item: {"item": item, "reads": lambda: item}), collate=list)  # a fork needs no pickling
    data.train_batch(0)
    with pytest.raises(ValueError, match="AttributeError: Can't pickle local object"):
        data.train_batch(1)


@pytest.fixture
def spawn():
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.usefixtures("spawn")
def test_a_dataset_that_spawned_workers_cannot_get_is_refused(make):
    refused = "^num_workers=2: the dataset cannot be sent to a worker, for which spawn pickles it: AttributeError: .*"
    with pytest.raises(ValueError, match=refused):
        make(Read(lambda item: item))


@pytest.mark.nightly
@pytest.mark.usefixtures("spawn")
def test_spawned_workers_read_the_same_batches(make):
    assert same(batches_of(make(num_workers=1)), batches_of(make(num_workers=0)))
    assert len(children()) == 1
