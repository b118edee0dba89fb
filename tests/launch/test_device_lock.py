import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from devices import device_lock

from ampsweep.config.errors import UserError
from ampsweep.launch.device_lock import check_lock, free_devices, held_locks, lock_of
from ampsweep.launch.signal_handlers import StopRequest

GPUS = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")


@pytest.fixture(autouse=True)
def _own_temporary_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("ampsweep.launch.device_lock._POLL_S", 0.01)


@pytest.fixture
def holder():
    """Another process that holds the CPU until its stdin ends."""
    script = "import sys; from ampsweep.launch.device_lock import free_devices\nwith free_devices(['cpu']): print(); "
    command = [sys.executable, "-c", f"{script}sys.stdout.flush(); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def is_free(device):
    stop = StopRequest()
    stop.request("it is not free")
    try:
        with device_lock(device, stop=stop):
            return True
    except KeyboardInterrupt:
        return False


@pytest.mark.parametrize("end", ["stdin", "kill"])
def test_two_processes_train_on_a_device_in_turn(end, holder):
    said = []

    def release(sentence):
        said.append(sentence)
        holder.stdin.close() if end == "stdin" else holder.kill()

    with device_lock("cuda:0", pytest.fail):  # another device is free meanwhile
        pass
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt), device_lock("cpu", lambda _: stop.request("SIGTERM"), stop):
        pytest.fail("two processes hold the device")
    with device_lock("cpu", release):
        holder.wait(5)
    (sentence,) = said
    assert sentence.startswith("waiting for cpu: another training runs on it (lock ")
    with device_lock("cpu", pytest.fail):
        pass


def test_a_lock_is_checked_whoever_holds_it(tmp_path):
    with device_lock("cpu"):
        check_lock("cpu")
    lock_of("mps").path.mkdir()
    with pytest.raises(UserError, match=f"lock of device mps cannot be taken: {tmp_path}.*: Is a directory"):
        check_lock("mps")
    lock_of("cuda:3").path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        check_lock("cuda:3")


def test_several_devices_are_held_together():
    said, wanted = [], ("cuda:1", "cpu", "cuda:0")
    with ExitStack() as other:
        other.enter_context(device_lock("cpu"))

        def release(sentence):
            said.append(sentence)
            assert is_free("cuda:0"), "whoever waits holds none"
            other.close()

        with held_locks(map(lock_of, wanted), on_wait=release):
            assert not any(map(is_free, wanted))
    assert all(map(is_free, wanted))
    (sentence,) = said
    assert sentence.startswith("waiting for cpu: another training runs on it"), "the device that is not free"


def test_the_first_devices_that_are_free_are_taken():
    said = []
    with ExitStack() as held:
        assert held.enter_context(free_devices(GPUS)) == ("cuda:0",)
        last = held.enter_context(ExitStack())
        assert last.enter_context(free_devices(GPUS[2:])) == ("cuda:2",)

        def release(sentence):
            said.append(sentence)
            assert is_free("cuda:1"), "whoever waits holds none"
            last.close()

        assert held.enter_context(free_devices(GPUS[:3], 2, release)) == ("cuda:1", "cuda:2")
        assert [*map(is_free, GPUS)] == [False, False, False, True]
    assert all(map(is_free, GPUS))
    (sentence,) = said
    assert sentence.startswith("waiting for 2 of cuda:0, cuda:1, cuda:2: other trainings run on them (locks such as /")


def test_a_gpu_has_one_lock_however_it_is_named(monkeypatch):
    assert len({lock_of(name).path for name in ("cuda:0", "cuda:1", "mps", "cpu")}) == 4
    assert lock_of("cuda").path == lock_of("cuda:0").path
    uuids = ["8f2a7c31-1111-2222-3333-444455556666", "0b1c2d3e-1111-2222-3333-444455556666"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index]))
    names = [lock_of(f"cuda:{index}").path.name.rpartition("-cuda-")[2] for index in range(2)]
    assert names == [f"{uuid}.lock" for uuid in uuids]
    assert lock_of("cuda").path == lock_of("cuda:0").path
