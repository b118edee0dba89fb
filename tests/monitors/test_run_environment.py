"""The record describes the environment of a run."""

import json
import platform
import runpy
import shutil
import subprocess
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ampsweep.monitors import environment as environment_module
from ampsweep.monitors.environment import device_name, effective_flags, environment

CPU = torch.device("cpu")


def test_facts_are_those_in_use_and_fit_into_json(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    matmul = torch.backends.mkldnn.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    facts, matmul.fp32_precision = environment(CPU), before
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["python"] == platform.python_version()
    assert facts["flags"]["mkldnn_matmul_fp32_precision"] == "bf16"
    assert facts["variables"]["NVIDIA_TF32_OVERRIDE"] == "1"
    assert "OMP_NUM_THREADS" not in facts["variables"]
    assert json.loads(json.dumps(facts)) == facts
    assert not {"cuda", "cudnn", "driver", "capability"} & set(facts), "absent in a run on the CPU"
    assert None not in facts.values()
    assert device_name(CPU) == facts["cpu"] != ""


def test_cudas_flags_are_those_in_effect():
    matmul, before = torch.backends.cuda.matmul, effective_flags(torch.device("cuda"))
    for name in ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "fp16_accumulation"):
        setattr(matmul, f"allow_{name}", not before[name])
        with sdpa_kernel([SDPBackend.MATH]):
            found = effective_flags(torch.device("cuda"))
        setattr(matmul, f"allow_{name}", before[name])
        assert found == before | {name: not before[name], "attention_backends": ["math"]}


def test_a_checkout_is_known_by_its_commit(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        return subprocess.check_output(["git", *identity, *arguments], cwd=tmp_path, text=True).strip()

    def facts():
        return {name: fact for name, fact in module["environment"](CPU).items() if name.startswith("git")}

    copied = Path(shutil.copy(environment_module.__file__, tmp_path))
    module = runpy.run_path(str(copied))
    git("init", "--quiet")
    assert facts() == {}, "inside a checkout, but no part of it"
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    commit = git("rev-parse", "HEAD")
    assert facts() == {"git_commit": commit, "git_dirty": False}
    copied.write_text("changed = True\n", encoding="utf-8")
    assert facts() == {"git_commit": commit, "git_dirty": True}
