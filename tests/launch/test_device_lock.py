import multiprocessing
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from devices import device_lock

from ampsweep.config.errors import UserError
from ampsweep.launch.device_lock import check_lock, free_devices, held_locks, lock_of, lock_path
from ampsweep.launch.signals import StopRequest


@pytest.fixture(autouse=True)
def _own_temporary_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def hold(device, told, release):
    with device_lock(device):
        told.send((time.monotonic(), None))
        release.wait()
        told.send((time.monotonic(), None))


class Holder:
    """Another process that holds a device until it is told to let go."""

    def __init__(self, device):
        context = multiprocessing.get_context("spawn")
        self.release = context.Event()
        self._told, telling = context.Pipe(duplex=False)
        self.process = context.Process(target=hold, args=(device, telling, self.release))
        self.process.start()
        self._told.recv()


@pytest.fixture
def cpu_holder():
    holder = Holder("cpu")
    yield holder
    holder.process.kill()
    holder.process.join()


def test_two_processes_train_on_a_device_in_turn(cpu_holder):
    told = []

    def release(sentence):
        told.append(sentence)
        cpu_holder.release.set()

    with device_lock("cpu", release):
        cpu_holder.process.join(5)
        assert cpu_holder.process.exitcode == 0
    assert len(told) == 1
    assert told[0].startswith("waiting for cpu: another training runs on it (lock ")


def test_the_lock_of_a_killed_process_is_free(cpu_holder):
    with device_lock("cpu", lambda _: cpu_holder.process.kill()):
        pass


def test_another_device_is_free_meanwhile(cpu_holder):
    with device_lock("cuda:0", pytest.fail):
        pass


def test_a_stop_request_ends_the_wait(cpu_holder):
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt), device_lock("cpu", lambda _: stop.request("SIGTERM"), stop):
        pytest.fail("two processes hold the device")


def test_a_device_can_be_locked_again():
    for _ in range(2):
        with device_lock("cpu", pytest.fail):
            pass


def test_a_lock_is_checked_whoever_holds_it(cpu_holder, tmp_path):
    check_lock("cpu")
    Path(lock_path("mps")).mkdir()
    with pytest.raises(UserError, match=f"lock of device mps cannot be taken: {tmp_path}.*: Is a directory"):
        check_lock("mps")


def test_two_devices_have_two_locks():
    assert len({*map(lock_path, ("cuda:0", "cuda:1", "mps", "cpu"))}) == 4
    assert lock_path("cuda") == lock_path("cuda:0")


def is_free(device):
    stop = StopRequest()
    stop.request("it is not free")
    try:
        with device_lock(device, stop=stop):
            return True
    except KeyboardInterrupt:
        return False


def all_of(devices, on_wait=None):
    return held_locks(map(lock_of, devices), on_wait=on_wait)


def take_both(devices, ready, num_times):
    ready.wait()
    for _ in range(num_times):
        with all_of(devices):
            pass


def test_devices_taken_as_a_whole_in_any_order_never_deadlock(monkeypatch):
    monkeypatch.setattr("ampsweep.launch.device_lock._POLL_S", 0.001)
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    ready = context.Barrier(2)
    orders = (("cuda:0", "cuda:1", "cuda:2"), ("cuda:2", "cuda:1", "cuda:0"))
    processes = [context.Process(target=take_both, args=(order, ready, 300)) for order in orders]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        process.kill()  # one that still waits has met a deadlock
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]


def test_several_devices_are_held_together(cpu_holder):
    told = []

    def release(sentence):
        told.append(sentence)
        cpu_holder.release.set()

    with all_of(("cuda:1", "cpu", "cuda:0"), release):
        assert not any(map(is_free, ("cpu", "cuda:0", "cuda:1")))
    assert all(map(is_free, ("cpu", "cuda:0", "cuda:1")))
    assert len(told) == 1
    assert told[0].startswith("waiting for cpu: another training runs on it"), "the one of them that is not free"


def test_the_first_devices_that_are_free_are_taken():
    gpus = tuple(f"cuda:{index}" for index in range(4))
    with ExitStack() as held:
        assert held.enter_context(free_devices(gpus)) == ("cuda:0",)
        assert held.enter_context(free_devices(gpus)) == ("cuda:1",)
        assert held.enter_context(free_devices(gpus[1:], number=2)) == ("cuda:2", "cuda:3")
        assert not any(map(is_free, gpus))
    assert all(map(is_free, gpus))


def test_who_waits_for_free_devices_holds_none():
    gpus, told = ("cuda:0", "cuda:1", "cuda:2"), []
    with ExitStack() as held:
        held.enter_context(device_lock("cuda:0"))
        last = held.enter_context(ExitStack())
        last.enter_context(device_lock("cuda:2"))

        def release(sentence):
            told.append(sentence)
            assert is_free("cuda:1")
            last.close()

        assert held.enter_context(free_devices(gpus, 2, release)) == ("cuda:1", "cuda:2")
    assert len(told) == 1
    assert told[0].startswith("waiting for 2 of cuda:0, cuda:1, cuda:2: other trainings run on them (locks such as /")


def test_a_gpu_has_one_lock_however_it_is_named(monkeypatch):
    uuids = ["8f2a7c31-1111-2222-3333-444455556666", "0b1c2d3e-1111-2222-3333-444455556666"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index]))
    assert [lock_path(f"cuda:{index}").name.rpartition("-cuda-")[2] for index in range(2)] == [
        f"{uuid}.lock" for uuid in uuids
    ]
    assert lock_path("cuda") == lock_path("cuda:0")
