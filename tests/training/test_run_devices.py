"""The devices that `device=` names, and how a process takes a free device and keeps to it."""

import os
import re
import subprocess
import sys

import pytest
import torch
from assembled import CPU
from devices import device_lock, needs_cuda

from ampsweep.config.errors import UserError
from ampsweep.launch.device_lock import lock_of
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.monitors.processors import cpu_name
from ampsweep.training.components import device
from ampsweep.training.components.device import RunDevice, resolve_device, run_devices, taken_device, taken_devices

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


@pytest.fixture(autouse=True)
def _own_locks_and_environment(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def gpus(monkeypatch):
    """Make torch see GPUs of these models; returns the list of those made its current device."""

    def see(*models):
        current = []
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: len(models))
        monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
        monkeypatch.setattr(device, "device_name", lambda place: cpu_name() if place == CPU else models[place.index])
        return current

    return see


def labels(name):
    return [*map(str, run_devices(name))]


def refused(sentence):
    return pytest.raises(UserError, match=f"^{re.escape(sentence)}")


def test_a_name_stands_for_devices_of_a_single_model(gpus):
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    assert resolve_device("auto") == (CPU if accelerator is None else torch.device(accelerator.type, 0))
    assert resolve_device("cpu") == CPU
    with refused("device=tpu: torch knows no such device"):
        run_devices("tpu")
    with refused("device=meta: this machine has "):
        run_devices("meta")
    current = gpus(A100, T4, A100, T4)
    assert labels("auto") == ["cuda:0", "cuda:2"], "the GPUs that are like the first"
    assert (labels("cuda:1"), labels("cuda")) == (["cuda:1"], ["cuda:0"])
    assert labels("cuda:3/1") == ["cuda:3", "cuda:1"], "in the order in which they are named"
    for name, index in (("auto", 0), ("cuda", 0), ("cuda:1", 1)):
        assert resolve_device(name) == torch.device("cuda", index)
        assert current[-1] == index
    text = "device=cuda:0/1: cuda:0 is a NVIDIA A100-SXM4-80GB, cuda:1 is a Tesla T4, and runs on different models"
    with refused(text):
        run_devices("cuda:0/1")
    with refused("device=cuda:1/4: this machine has 4 of them, from 0"):
        run_devices("cuda:1/4")


def test_the_free_gpu_that_is_taken_becomes_torchs_own(gpus):
    current, said = gpus(A100, A100, A100), []
    with device_lock("cuda:0"), taken_device("auto", said.append) as second, taken_device("auto", said.append) as third:
        assert (str(second), second.device, second.name) == ("cuda:1", torch.device("cuda", 1), A100)
        assert str(third) == "cuda:2"
        assert current == [1, 2]
    assert said == []


def test_a_stop_ends_the_wait_for_a_free_gpu(gpus):
    gpus(A100, A100)
    stop, said = StopRequest(), []
    wait = taken_device("auto", lambda sentence: (said.append(sentence), stop.request("SIGTERM")), stop)
    with device_lock("cuda:0"), device_lock("cuda:1"), pytest.raises(KeyboardInterrupt), wait:
        pytest.fail("two processes hold the device")
    assert said[0].startswith("waiting for one of cuda:0, cuda:1: other trainings run on them (locks such as /")


def test_processes_of_a_training_take_a_gpu_each(gpus):
    with taken_devices("cpu", 4) as shared:
        assert shared == (RunDevice(CPU),)
    gpus(A100, A100, T4, A100)
    for name in ("auto", "cuda"):
        with device_lock("cuda:0"), taken_devices(name, 2) as taken:
            assert [*map(str, taken)] == ["cuda:1", "cuda:3"]
    sentence = "device=cuda:0/1: 3 processes need one each, and there are 2 of one model"
    with refused(sentence), taken_devices("cuda:0/1", 3):
        pass


@needs_cuda
def test_the_lock_of_a_gpu_is_that_of_its_uuid(tmp_path):
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    expected = lock_of("cuda:0").path
    assert uuid in expected.name
    code = "import os, torch; from ampsweep.launch.device_lock import lock_of; print(lock_of('cuda:0').path)"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": f"GPU-{uuid[:13]}", "TMPDIR": str(tmp_path)}
    output = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert output.strip() == str(expected)
    with taken_device("auto") as taken:
        assert torch.ones((), device="cuda").device == taken.device
