"""The environment of a run: versions, hardware, and the flags in effect."""

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from ampsweep.monitors.nvml import NvmlDevice, query_nvml
from ampsweep.monitors.processors import cpu_name, num_available_cores

_PACKAGES: Final = ("ampsweep", "torch", "wandb", "hydra-core", "omegaconf", "numpy")
_VARIABLES: Final = (
    *("CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG"),
    *("MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "ONEDNN_DEFAULT_FPMATH_MODE"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_CUDNN_V8_API_DISABLED"),
)
"""Variables that change speed, memory or arithmetic behind a configuration's back."""
_FUSED: Final = ("flash", "mem_efficient", "cudnn", "math")  # torch's backends of attention


def device_name(device: torch.device) -> str:
    """The model of the device by its driver or operating system."""
    if device.type in ("cuda", "xpu"):
        return str(torch.get_device_module(device).get_device_name(device))
    return cpu_name()


def environment(device: torch.device) -> dict[str, Any]:
    """Facts about this process and machine for the run record. Call it with the precision mode's flags set."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": _versions(),
        "os": platform.platform(),
        "cpu": cpu_name(),
        "num_cores": num_available_cores(),
        "num_threads": torch.get_num_threads(),
        "device": device_name(device),
        "flags": effective_flags(device),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    return facts | _accelerator(device) | _checkout()


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions | {"torch": str(torch.__version__)}  # includes the build, unlike the package's version


def effective_flags(device: torch.device) -> dict[str, Any]:
    """The current values of torch's switches that change results or speed on `device`."""
    backends: Any = torch.backends  # its flags are properties that type checkers do not see
    matmul, attention = backends.cuda.matmul, {name: getattr(backends.cuda, f"{name}_sdp_enabled")() for name in _FUSED}
    flags: dict[str, Any] = {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "attention_backends": [name for name, is_enabled in attention.items() if is_enabled],
    }
    if device.type == "cpu":
        return flags | {
            "mkldnn_matmul_fp32_precision": backends.mkldnn.matmul.fp32_precision,
            "mkldnn_conv_fp32_precision": backends.mkldnn.conv.fp32_precision,
        }
    if device.type == "cuda":
        return flags | {
            "matmul_fp32_precision": matmul.fp32_precision,
            "fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
            "bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
            "fp16_accumulation": matmul.allow_fp16_accumulation,
            "attention_in_half_reduces_in_half": backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
            "cudnn_conv_fp32_precision": backends.cudnn.conv.fp32_precision,
            "cudnn_rnn_fp32_precision": backends.cudnn.rnn.fp32_precision,
            "cudnn_benchmark": backends.cudnn.benchmark,
            "cudnn_deterministic": backends.cudnn.deterministic,
        }
    return flags


def _accelerator(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {}
    backends: Any = torch.backends
    facts = {
        "cuda": torch.version.cuda,
        "cudnn": backends.cudnn.version(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
        "driver": query_nvml(device, NvmlDevice.driver_version),
        "power_limit_w": query_nvml(device, NvmlDevice.power_limit_w),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _checkout() -> dict[str, Any]:
    """The commit of this code's checkout, and whether tracked files differ; empty for an installed package."""
    # An installed package can lie inside another checkout: only a tracked file belongs to it.
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return {}
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    return {} if commit is None or changes is None else {"git_commit": commit, "git_dirty": bool(changes)}


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
