"""The record describes the environment of a run."""

import importlib.util
import json
import platform
import shutil
import subprocess

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ampsweep.monitors import environment as environment_module
from ampsweep.monitors.environment import device_name, effective_flags, environment

CPU = torch.device("cpu")


def test_facts_are_those_in_use_and_fit_into_json():
    facts = environment(CPU)
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["python"] == platform.python_version()
    assert json.loads(json.dumps(facts)) == facts
    assert not {"cuda", "cudnn", "driver", "capability"} & set(facts), "absent in a run on the CPU"
    assert None not in facts.values()
    assert device_name(CPU) == facts["cpu"] != ""


def test_flags_and_variables_are_those_in_effect(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    on_cpu, on_cuda = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul
    before, on_cpu.fp32_precision = on_cpu.fp32_precision, "bf16"
    facts, on_cpu.fp32_precision = environment(CPU), before
    before = effective_flags(torch.device("cuda"))
    assert facts["flags"]["mkldnn_matmul_fp32_precision"] == "bf16"
    for name in ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "fp16_accumulation"):
        setattr(on_cuda, f"allow_{name}", not before[name])
        with sdpa_kernel([SDPBackend.MATH]):
            found = effective_flags(torch.device("cuda"))
        setattr(on_cuda, f"allow_{name}", before[name])
        assert found == before | {name: not before[name], "attention_backends": ["math"]}
    assert facts["variables"]["NVIDIA_TF32_OVERRIDE"] == "1"
    assert "OMP_NUM_THREADS" not in facts["variables"]


def test_a_checkout_is_known_by_its_commit(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        return subprocess.check_output(["git", *identity, *arguments], cwd=tmp_path, text=True).strip()

    def facts():
        return {name: fact for name, fact in module.environment(CPU).items() if name.startswith("git")}

    copied = tmp_path / "environment.py"
    shutil.copy(environment_module.__file__, copied)
    spec = importlib.util.spec_from_file_location("copied_environment", copied)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    git("init", "--quiet")
    assert facts() == {}, "inside a checkout, but no part of it"
    (tmp_path / "other.py").touch()
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    commit = git("rev-parse", "HEAD")
    assert facts() == {"git_commit": commit, "git_dirty": False}
    (tmp_path / "other.py").write_text("changed = True\n", encoding="utf-8")
    assert facts() == {"git_commit": commit, "git_dirty": True}
