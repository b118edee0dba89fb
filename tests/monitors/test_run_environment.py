"""The record says where a run took place."""

import importlib.util
import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from devices import needs_cuda
from torch.nn.attention import SDPBackend, sdpa_kernel

import ampsweep
from ampsweep.monitors.environment import device_name, effective_flags, environment
from ampsweep.monitors.nvml import NvmlDevice

CPU = torch.device("cpu")


def test_versions_are_those_in_use_and_everything_fits_into_json():
    facts = environment(CPU)
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["python"] == platform.python_version()
    assert json.loads(json.dumps(facts)) == facts


def test_what_a_cpu_run_does_not_have_is_left_out():
    facts = environment(CPU)
    assert not {"cuda", "cudnn", "driver", "capability"} & set(facts)
    assert None not in facts.values()


def test_the_cpu_has_the_name_its_system_gives_it():
    assert device_name(CPU) == environment(CPU)["cpu"] != ""


def test_flags_and_variables_are_those_in_effect(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    assert environment(CPU)["flags"]["mkldnn_matmul_fp32_precision"] == before
    matmul.fp32_precision = "bf16"
    try:
        facts = environment(CPU)
    finally:
        matmul.fp32_precision = before
    assert facts["flags"]["mkldnn_matmul_fp32_precision"] == "bf16"
    assert facts["variables"]["NVIDIA_TF32_OVERRIDE"] == "1"
    assert "OMP_NUM_THREADS" not in facts["variables"]


@pytest.mark.parametrize(
    "name", ["fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "fp16_accumulation"]
)
def test_flags_of_half_precision_and_of_attention_are_recorded(name):
    matmul, before = torch.backends.cuda.matmul, effective_flags(torch.device("cuda"))
    setattr(matmul, f"allow_{name}", not before[name])
    try:
        with sdpa_kernel([SDPBackend.MATH]):
            found = effective_flags(torch.device("cuda"))
    finally:
        setattr(matmul, f"allow_{name}", before[name])
    assert found == before | {name: not before[name], "attention_backends": ["math"]}


@pytest.fixture
def package_copy(tmp_path):
    package = tmp_path / "ampsweep"
    shutil.copytree(Path(ampsweep.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def git(directory, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def checkout_facts(package):
    spec = importlib.util.spec_from_file_location("copied_environment", package / "monitors" / "environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: fact for name, fact in module.environment(CPU).items() if name.startswith("git")}


def test_a_checkout_is_known_by_its_commit(package_copy):
    root = package_copy.parent
    git(root, "init", "--quiet")
    assert checkout_facts(package_copy) == {}  # inside somebody's checkout, but not part of it
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "all")
    commit = git(root, "rev-parse", "HEAD")
    assert checkout_facts(package_copy) == {"git_commit": commit, "git_dirty": False}
    (package_copy / "metrics.py").write_text("changed = True\n", encoding="utf-8")
    assert checkout_facts(package_copy) == {"git_commit": commit, "git_dirty": True}


def test_without_a_gpu_there_is_no_nvml():
    assert NvmlDevice.open(CPU) is None


@needs_cuda
def test_on_cuda_the_device_and_its_flags_are_known():
    device = torch.device("cuda")
    facts = environment(device)
    assert facts["device"] == device_name(device) == torch.cuda.get_device_name()
    assert facts["cuda"] == torch.version.cuda
    assert "matmul_fp32_precision" in facts["flags"]
    assert json.loads(json.dumps(facts)) == facts
