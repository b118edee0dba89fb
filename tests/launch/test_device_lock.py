import multiprocessing
import time
from pathlib import Path

import pytest

from ampsweep.config.errors import UserError
from ampsweep.launch.device_lock import check_lock, device_lock, lock_path
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
    Path(lock_path("mps", {})).mkdir()
    with pytest.raises(UserError, match=f"lock of device mps cannot be taken: {tmp_path}.*: Is a directory"):
        check_lock("mps")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("cuda", None), ("cuda:0", None)),
        (("cuda:0", "2,3"), ("cuda:1", "0,2")),
        (("cuda:1", None), ("cuda:0", "1")),
        (("cuda:0", "GPU-8f2a"), ("cuda:1", "0,GPU-8f2a")),
        (("cpu", None), ("cpu:0", "")),
    ],
)
def test_one_device_has_one_lock_whatever_its_index(first, second):
    assert _path(*first) == _path(*second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("cuda:0", "0"), ("cuda:0", "1")),
        (("cuda:0", None), ("cuda:1", None)),
        (("cuda:0", None), ("mps", None)),
    ],
)
def test_two_devices_have_two_locks(first, second):
    assert _path(*first) != _path(*second)


@pytest.mark.parametrize(
    ("device", "visible"), [("cuda:1", "3"), ("cuda", ""), ("cuda:1", "0,-1,1"), ("cuda:one", "0")]
)
def test_a_hidden_device_is_refused(device, visible):
    with pytest.raises(ValueError, match=f"device {device} is not among the . of CUDA_VISIBLE_DEVICES='{visible}'"):
        _path(device, visible)


def _path(device, visible):
    return lock_path(device, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
