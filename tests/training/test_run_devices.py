"""The devices that `device=` names: which there are, which of them are alike, and how a process is kept to one."""

import os
import subprocess
import sys

import pytest
import torch
from devices import device_lock, needs_cuda, needs_gpus

from ampsweep.config.errors import UserError
from ampsweep.launch.device_lock import lock_path
from ampsweep.launch.signals import StopRequest
from ampsweep.monitors.processors import cpu_name
from ampsweep.training.components import device
from ampsweep.training.components.device import RunDevice, run_devices, taken_device, taken_devices

CPU = torch.device("cpu")
A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"


@pytest.fixture(autouse=True)
def _own_locks_and_environment(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def gpus(monkeypatch):
    """Make torch see GPUs of these models; returns the list of those made its current one."""

    def see(*models):
        current = []
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: len(models))
        monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
        monkeypatch.setattr(device, "device_name", lambda one: cpu_name() if one == CPU else models[one.index])
        return current

    return see


def labels(name):
    return [str(place) for place in run_devices(name)]


def refusal(name):
    with pytest.raises(UserError) as refused:
        run_devices(name)
    return str(refused.value)


def test_auto_takes_the_gpus_that_are_like_the_first(gpus):
    gpus(A100, T4, A100, A100)
    assert labels("auto") == ["cuda:0", "cuda:2", "cuda:3"]
    assert labels("cuda:1") == ["cuda:1"]
    assert labels("cuda") == ["cuda:0"]


def test_a_choice_of_gpus_is_of_one_model(gpus):
    gpus(A100, T4, A100, T4)
    assert labels("cuda:3/1") == ["cuda:3", "cuda:1"], "in the order in which they are named"
    told = "device=cuda:0/1: cuda:0 is a NVIDIA A100-SXM4-80GB, cuda:1 is a Tesla T4, and runs on different ones"
    assert refusal("cuda:0/1").startswith(told)
    assert refusal("cuda:1/4") == "device=cuda:1/4: this machine has 4 of them, from 0"


def test_the_free_gpu_that_is_taken_becomes_torchs_own(gpus):
    current = gpus(A100, A100, A100)
    told = []
    with device_lock("cuda:0"), taken_device("auto", told.append) as second, taken_device("auto", told.append) as third:
        assert (str(second), second.device, second.name) == ("cuda:1", torch.device("cuda", 1), A100)
        assert str(third) == "cuda:2"
        assert current == [1, 2]
    assert told == []


def test_a_stop_ends_the_wait_for_a_free_gpu(gpus):
    gpus(A100, A100)
    stop, told = StopRequest(), []

    def ask_to_stop(sentence):
        told.append(sentence)
        stop.request("SIGTERM")

    with (
        device_lock("cuda:0"),
        device_lock("cuda:1"),
        pytest.raises(KeyboardInterrupt),
        taken_device("auto", ask_to_stop, stop),
    ):
        pytest.fail("two processes hold the device")
    assert len(told) == 1
    assert told[0].startswith("waiting for one of cuda:0, cuda:1: other trainings run on them (locks such as /")


def test_processes_of_one_training_take_a_gpu_each(gpus):
    with taken_devices("cpu", 4) as shared:
        assert shared == (RunDevice(CPU),)
    gpus(A100, A100, T4, A100)
    for name in ("auto", "cuda"):
        with device_lock("cuda:0"), taken_devices(name, 2) as taken:
            assert [str(one) for one in taken] == ["cuda:1", "cuda:3"]
    with pytest.raises(UserError) as refused, taken_devices("cuda:0/1", 3):
        pass
    assert str(refused.value) == "device=cuda:0/1: 3 processes need one each, and there are 2 of one model"


@needs_cuda
def test_the_lock_of_a_gpu_is_that_of_its_uuid(tmp_path):
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    expected = lock_path("cuda:0")
    assert uuid in expected.name
    asked = "import os, torch; from ampsweep.launch.device_lock import lock_path; print(lock_path('cuda:0'))"
    for name in (f"GPU-{uuid}", f"GPU-{uuid[:13]}"):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": name, "TMPDIR": str(tmp_path)}
        told = subprocess.check_output([sys.executable, "-c", asked], text=True, env=environment)
        assert told.strip() == str(expected)


@needs_cuda
def test_looking_for_a_free_gpu_makes_no_context():
    asked = """
import os, torch
from ampsweep.monitors.nvml import NvmlDevice
from ampsweep.training.components.device import run_devices, taken_device

def contexts():
    found = []
    for index in range(torch.cuda.device_count()):
        nvml = NvmlDevice.open(torch.device("cuda", index))
        found.append(nvml is not None and os.getpid() in (nvml.compute_processes() or ()))
    return found

before = run_devices("auto") and contexts()
with taken_device("auto") as taken:
    torch.ones((), device=taken.device)
    print(sum(before), sum(contexts()))
"""
    told = subprocess.check_output([sys.executable, "-c", asked], text=True)
    assert told.split() in (["0", "1"], ["0", "0"]), "the second where the driver shows no processes"


@needs_gpus(2)
def test_each_gpu_of_a_machine_is_taken_once():
    found = run_devices("auto")
    with taken_device("auto") as first, taken_device("auto") as second:
        assert [first, second] == list(found[:2])
        assert torch.accelerator.current_device_index() == second.device.index
        assert torch.ones((), device="cuda").device == second.device
