"""The device of a prediction. It need not exist on this machine."""

import os
import re
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import torch

from ampsweep.config.errors import UserError
from ampsweep.config.schema import PredictConfig
from ampsweep.precision.arithmetic import matmul_bits
from ampsweep.precision.support import INSTALLED_TORCH, Abilities, cuda_matmul_bits
from ampsweep.speed.devices import Device
from ampsweep.text import GIB, MIB

KINDS: Final = ("cpu", "cuda")

_CPU: Final = torch.device("cpu")
_AMPERE = (8, 0)
_HANDLES_PER_STEP = 2
CONTEXT_GIB: Final = 0.6  # of a GPU's memory, for the driver's context, torch's kernels and cuBLAS

_SMALL_WORKSPACE: Final = (2 * 4096 + 8 * 16) * 1024
_LARGE_WORKSPACE: Final = 32 * MIB
_LT_WORKSPACE: Final = MIB
_IN_ALLOCATOR, _LARGE_ON_BLACKWELL, _LARGE_ON_THOR, _NOT_KEPT = (2, 0), (2, 12), (2, 14), (2, 15)
"""Since these versions of torch workspaces come from its allocator; are large on capability 10 and 12, not only on 9.0;
are large on 11, too; are freed after each product. Since 2.12 cuBLASLt shares those of cuBLAS. From
ATen/cuda/CublasHandlePool.cpp and the machine code of the releases 2.11, 2.12, 2.14 and 2.15 for Linux."""


@dataclass(frozen=True)
class TargetDevice:
    """A kind of device; for CUDA also the properties that decide on kernels and their memory."""

    kind: Literal["cpu", "cuda"]
    capability: tuple[int, int] = _AMPERE  # CUDA compute capability: (8, 0) is an A100, (9, 0) an H100, (7, 5) a T4
    torch_version: tuple[int, int] = INSTALLED_TORCH  # major and minor version of the torch that trains
    gpu: Device | None = None  # its data, where one model of GPU is meant

    @property
    def name(self) -> str:
        if self.gpu is not None:
            return self.gpu.name
        return self.kind if self.kind == "cpu" else "cuda {}.{}".format(*self.capability)

    def memory_limit(self, config: PredictConfig) -> int | None:
        """Bytes that torch's allocator may take; None if neither the GPU nor the user says."""
        gib = config.memory_gib if self.gpu is None else self.gpu.memory_gib - CONTEXT_GIB
        return None if gib is None else round(gib * GIB)

    @property
    def abilities(self) -> Abilities:
        is_ampere = self.kind == "cuda" and self.capability >= _AMPERE
        return Abilities(
            self.name,
            tf32=is_ampere,
            bfloat16=is_ampere or self.kind == "cpu",
            autocast=True,
            matmul_bits=partial(cuda_matmul_bits, is_ampere) if self.kind == "cuda" else partial(matmul_bits, _CPU),
            capability=self.capability if self.kind == "cuda" else None,
        )

    @property
    def workspaces(self) -> tuple[int, ...]:
        """Bytes of each permanent workspace of matrix multiplications. cuBLAS allocates a workspace in torch's
        allocator for each handle: that of the forward pass's thread and that of the backward pass's. Before 2.12
        cuBLASLt (products with a bias) had its own in the forward pass. See ATen/cuda/CublasHandlePool.cpp
        (`parseChosenWorkspaceSize`, `getCUDABlasLtWorkspace`). Workspaces of cuDNN's convolutions depend on its choice
        of algorithms at run time and are not predicted."""
        if self.kind == "cpu" or not _IN_ALLOCATOR <= self.torch_version < _NOT_KEPT:
            return ()
        of_handles = (self._workspace_bytes,) * _HANDLES_PER_STEP
        return of_handles if self.torch_version >= _LARGE_ON_BLACKWELL else (*of_handles, _LT_WORKSPACE)

    @property
    def temporary_workspaces(self) -> tuple[int, int] | None:
        """Bytes of the workspace of a matrix multiplication, and of one with a bias, if they are freed after it."""
        is_temporary = self.kind == "cuda" and self.torch_version >= _NOT_KEPT
        return (self._workspace_bytes, _LT_WORKSPACE) if is_temporary else None

    @property
    def _workspace_bytes(self) -> int:
        pieces = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
        if pieces:
            return sum(int(kib) * 1024 * int(count) for kib, count in pieces)
        is_large = self.capability == (9, 0)
        if self.torch_version >= _LARGE_ON_BLACKWELL:
            is_large = self.capability[0] in (9, 10, 12)
        if self.torch_version >= _LARGE_ON_THOR:
            is_large = 9 <= self.capability[0] <= 12
        return _LARGE_WORKSPACE if is_large else _SMALL_WORKSPACE


def target_of(gpu: Device) -> TargetDevice:
    return TargetDevice("cpu" if gpu.architecture == "cpu" else "cuda", gpu.capability, gpu=gpu)


def resolve_target(config: PredictConfig, device: str) -> TargetDevice:
    """The target device of `config`; `device` is the value of `device=`. UserError if there is no such target."""
    kind = _device_type(device) if config.target == "auto" else config.target
    if kind not in KINDS:
        raise UserError(f"predict.target={config.target}: memory is predicted for {', '.join(KINDS)}, not for {kind}")
    if kind == "cpu" and config.capability is not None:
        raise UserError(f"predict.capability={config.capability}: has an effect only with predict.target=cuda")
    capability = _capability(config, device) if kind == "cuda" else _AMPERE
    return TargetDevice("cuda" if kind == "cuda" else "cpu", capability)


def _device_type(device: str) -> str:
    if device != "auto":
        return device.partition(":")[0]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if accelerator is None else accelerator.type


def _capability(config: PredictConfig, device: str) -> tuple[int, int]:
    if config.capability is not None:
        found = re.fullmatch(r"(\d+)\.(\d+)", config.capability)
        if found is None:
            complaint = "must be two numbers with a dot between, such as 8.0"
            raise UserError(f"predict.capability={config.capability}: {complaint}")
        return int(found[1]), int(found[2])
    if not torch.cuda.is_available():
        return _AMPERE
    is_named = _device_type(device) == "cuda" and device != "auto"
    return torch.cuda.get_device_capability(device.partition("/")[0] if is_named else None)
