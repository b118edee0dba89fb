"""The device a prediction is made for. It need not exist on this machine."""

import os
import re
from dataclasses import dataclass
from typing import Final, Literal

import torch

from ampsweep.config.errors import UserError
from ampsweep.config.schema import PredictConfig
from ampsweep.precision.support import Abilities
from ampsweep.predict.autocast_dispatch import INSTALLED_TORCH

KINDS: Final = ("cpu", "cuda")

_AMPERE = (8, 0)
_LARGE_WORKSPACES = (9, 10, 12)
_HANDLES_PER_STEP = 2


@dataclass(frozen=True)
class TargetDevice:
    """A kind of device; for CUDA also the properties that decide which kernels run and how much memory they take."""

    kind: Literal["cpu", "cuda"]
    capability: tuple[int, int] = _AMPERE
    """CUDA compute capability: (8, 0) is an A100, (9, 0) an H100, (7, 5) a T4."""
    torch_version: tuple[int, int] = INSTALLED_TORCH
    """Major and minor version of the torch that will train."""

    @property
    def name(self) -> str:
        """The device as people write it: `cpu`, `cuda 8.0`."""
        return self.kind if self.kind == "cpu" else f"{self.kind} {_dotted(self.capability)}"

    @property
    def abilities(self) -> Abilities:
        """The abilities that decide which precision modes it can run."""
        is_ampere = self.kind == "cuda" and self.capability >= _AMPERE
        return Abilities(self.name, tf32=is_ampere, bfloat16=is_ampere or self.kind == "cpu", autocast=True)

    @property
    def workspaces(self) -> tuple[int, ...]:
        """Bytes of each workspace that matrix multiplications keep for good.

        cuBLAS (and cuBLASLt with it) takes one from torch's allocator for each handle: that of the forward pass's
        thread and that of the backward pass's. See ATen/cuda/CublasHandlePool.cpp (`parseChosenWorkspaceSize`); they
        come from torch's allocator since 2.0. Workspaces of cuDNN's convolutions depend on the algorithms it chooses at
        run time and are not predicted.
        """
        if self.kind == "cpu" or self.torch_version < (2, 0):
            return ()
        return (_workspace_bytes(self.capability),) * _HANDLES_PER_STEP


def resolve_target(config: PredictConfig, device: str) -> TargetDevice:
    """The target device of `config`; `device` is the value of `device=`, used by `predict.target=auto`.

    Raises:
        UserError: there is no such target, capability or version.
    """
    kind = _device_type(device) if config.target == "auto" else config.target
    if kind not in KINDS:
        raise UserError(f"predict.target={config.target}: memory is predicted for {', '.join(KINDS)}, not for {kind}")
    capability = _capability(config) if kind == "cuda" else _AMPERE
    version = INSTALLED_TORCH if config.torch is None else _pair("predict.torch", config.torch)
    return TargetDevice("cuda" if kind == "cuda" else "cpu", capability, version)


def _device_type(device: str) -> str:
    if device != "auto":
        return device.partition(":")[0]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if accelerator is None else accelerator.type


def _capability(config: PredictConfig) -> tuple[int, int]:
    if config.capability is not None:
        return _pair("predict.capability", config.capability)
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else _AMPERE


def _pair(key: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    if found is None:
        raise UserError(f"{key}={text}: must be two numbers with a dot between, such as 8.0")
    return int(found[1]), int(found[2])


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def _workspace_bytes(capability: tuple[int, int]) -> int:
    config = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    pieces = re.findall(r":(\d+):(\d+)", config)
    if pieces:
        return sum(int(kib) * 1024 * int(count) for kib, count in pieces)
    return 4096 * 8 * 1024 if capability[0] in _LARGE_WORKSPACES else (4096 * 2 + 16 * 8) * 1024
