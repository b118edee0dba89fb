"""Workers read ahead: the same batches, and an end that a user can read."""

import gc
import multiprocessing
import random
import re
import signal
from contextlib import contextmanager
from multiprocessing import resource_sharer
from threading import Timer

import numpy as np
import psutil
import pytest
import torch
from children import children
from own_datasets import Augmented, Broken, Unpicklable, Unsendable, Watched

from ampsweep.data.map_dataset import MapDataset
from ampsweep.observe.feeding import fed
from ampsweep.observe.host_memory import measure_host_peak
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.text import GIB

CPU = torch.device("cpu")


@pytest.fixture
def make():
    """Data of augmented items, whose workers end with the test."""
    made = []

    def make(train=None, val=None, **changes):
        settings = {"batch_size": 4, "seed": 3, "device": CPU, "num_workers": 2} | changes
        data = MapDataset(train=train or Augmented(), val=val or Augmented(10), **settings)
        made.append(data)
        return data

    yield make
    for data in made:
        data.stop_workers()
    assert children() == []


def first_batches(data, indices=range(14)):
    return [data.train_batch(index) for index in indices]


def workers():
    return children()


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_workers_reads_the_same_batches(make, num_workers):
    data = make(num_workers=num_workers, prefetch_factor=3)
    assert same(first_batches(data), first_batches(make(num_workers=0)))
    assert len(workers()) == num_workers


def test_batches_do_not_depend_on_the_order_of_access(make):
    data, expected = make(), first_batches(make(num_workers=0), range(20))
    for indices in (range(4), range(9, 14), range(3, 7), [19, 2], range(3)):
        assert same(first_batches(data, indices), [expected[index] for index in indices])


def test_validation_is_the_same_with_workers(make):
    data, expected = make(), [*make(num_workers=0).val_batches()]
    first_batches(data)
    for _ in range(2):
        assert same([*data.val_batches()], expected)
    assert len(workers()) == 2, "those of the validation have ended with it"


def test_workers_of_a_validation_that_is_cut_short_end(make):
    batches = make().val_batches()
    next(batches)
    assert workers() == []
    next(batches)
    assert workers() != []
    batches.close()
    assert workers() == []


def test_the_trainings_own_random_numbers_are_left_alone(make):
    data = make()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    first_batches(data)
    [*data.val_batches()]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert str(np.random.get_state(legacy=False)) == str(before[2])


def test_a_check_of_one_batch_starts_no_worker(make):
    data = make()
    for _ in range(2):
        data.train_batch(0)
    assert workers() == []
    data.train_batch(1)
    assert len(workers()) == 2


def test_a_prediction_starts_no_worker(make):
    data = make(device=torch.device("meta"))
    first_batches(data)
    assert data.num_workers == 0


def test_workers_begin_after_a_traced_step(make):
    data = make()
    with measure_host_peak():
        first_batches(data, range(3))
        assert workers() == []
    data.train_batch(3)
    assert len(workers()) == 2


def test_a_memory_limit_is_none_of_the_workers(make):
    data, limit = make(), MemoryLimit(CPU, 300 / GIB)  # a batch has 192 bytes, and is made of as many
    for index, expected in enumerate(first_batches(make(num_workers=0))):
        with limit:
            batch = fed(data.train_batch, index)
        assert torch.equal(batch, expected)
        del batch


def test_no_trace_goes_on_in_a_worker(make):
    data = make(Watched(), Watched())
    with MemoryLimit(CPU, 1.0):
        here, there = fed(data.train_batch, 0), fed(data.train_batch, 1)
    assert here.tolist() == [1] * 4
    assert there.tolist() == [0] * 4


def test_data_that_is_dropped_takes_its_workers_along(make):
    data = MapDataset(train=Augmented(), val=Augmented(), batch_size=4, seed=0, device=CPU, num_workers=2)
    first_batches(data)
    assert len(workers()) == 2
    del data
    gc.collect()
    assert workers() == []


@pytest.mark.parametrize(
    ("what", "error", "told"),
    [
        ("raises", ValueError, r"RuntimeError: item 5 is broken \(.*own_datasets.py, line \d+\)"),
        ("exits", ValueError, r"ended by sys.exit\(3\) \(.*own_datasets.py, line \d+\)"),
        ("has_no_memory", MemoryError, r"none left \(.*own_datasets.py, line \d+\)"),
        ("is_killed", RuntimeError, r"DataLoader worker \(pid\(?s?\)? \d+\) (is killed by|exited unex).*"),
        ("leaves", RuntimeError, r"DataLoader worker \(pid\(?s?\)? \d+\) exited unexpectedly.*"),
    ],
)
def test_a_worker_that_dies_is_one_sentence(make, what, error, told, capfd):
    data = make(Broken(what), collate=torch.stack)
    with pytest.raises(error) as raised:
        first_batches(data)
    assert re.fullmatch(told, str(raised.value), re.DOTALL)
    assert workers() == []
    assert capfd.readouterr() == ("", "")


def test_a_worker_whose_connections_end_before_it_does_is_named(make, monkeypatch):
    def cut_off(ident):
        for worker in workers():
            Timer(0.1, worker.kill).start()
        raise ConnectionResetError

    data = make()
    monkeypatch.setattr(resource_sharer._ResourceSharer, "get_connection", staticmethod(cut_off))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) (is killed by|exited unexpectedly)"):
        first_batches(data)
    assert workers() == []


def test_what_cuts_off_living_workers_is_raised(make, monkeypatch):
    def refuse(ident):
        raise OSError(24, "Too many open files")

    data = make()
    monkeypatch.setattr(resource_sharer._ResourceSharer, "get_connection", staticmethod(refuse))
    with pytest.raises(OSError, match="Too many open files"):
        first_batches(data)


def test_stop_signals_are_not_the_workers(make):
    data = make()
    first_batches(data, range(2))
    for worker in workers():
        for number in (signal.SIGINT, signal.SIGTERM):
            psutil.Process(worker.pid).send_signal(number)
    assert same(first_batches(data, range(2, 14)), first_batches(make(num_workers=0))[2:])


def test_a_batch_that_cannot_be_sent_is_told(make):
    data = make(Unsendable(), Unsendable(), collate=list)
    data.train_batch(0)
    with pytest.raises(ValueError, match="AttributeError: Can't pickle local object"):
        data.train_batch(1)


@contextmanager
def spawned():
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


def test_a_dataset_that_spawned_workers_cannot_get_is_refused(make):
    refused = "^num_workers=2: the dataset cannot be sent to a worker, for which spawn pickles it: AttributeError: .*"
    with spawned(), pytest.raises(ValueError, match=refused):
        make(Unpicklable())
    assert same(first_batches(make(Unpicklable())), first_batches(make(num_workers=0))), "a fork needs no pickling"


@pytest.mark.slow
def test_spawned_workers_read_the_same_batches(make):
    with spawned():
        data = make(num_workers=1)
        assert same(first_batches(data), first_batches(make(num_workers=0)))
        assert len(workers()) == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"num_workers": "two"}, "num_workers must be a whole number, got two"),
        ({"num_workers": None}, "num_workers must be a whole number, got None"),
        ({"num_workers": 0, "prefetch_factor": 2}, "prefetch_factor=2 needs workers, but num_workers is 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(make, settings, told):
    with pytest.raises(ValueError, match=told):
        make(**settings)
