"""Fused optimizer kernels: for which of its classes torch has them, on which device."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from ampsweep.observe.operators import has_kernel

FUSED_FOR_SHARDS: Final = (torch.optim.Adam, torch.optim.AdamW)
"""Classes whose fused kernels take sharded parameters, as FSDP2's are (torch 2.11 to 2.15)."""


def has_fused_kernels(target: Any, device: str) -> bool:
    """Tell whether torch has fused kernels for its own optimizer class `target` on a type of device.

    They are the operator `_fused_NAME_`, of which torch's dispatcher knows whether a device has it. Where this build of
    torch lacks the device (a prediction for a GPU on a machine without), torch's own table of operators tells, which
    every build holds for its code generator. Neither is public API; a list here would age, as Adagrad's were once the
    CPU's alone.
    """
    operator = f"_fused_{getattr(target, '__name__', '').lower()}_"
    if not hasattr(torch.ops.aten, operator):
        return False
    key = device.upper()
    if device == "cuda" and torch.version.cuda is None:
        return key in _declared(operator)
    return has_kernel(f"aten::{operator}", key)


@cache
def _declared(operator: str) -> frozenset[str]:
    """The dispatch keys that an operator has kernels for, in torch's table of operators."""
    spec = find_spec("torchgen")
    assert spec is not None, "torch is installed with its code generator"
    assert spec.origin is not None
    table = Path(spec.origin).parent / "packaged/ATen/native/native_functions.yaml"
    entry = table.read_text(encoding="utf-8").partition(f"- func: {operator}(")[2].partition("\n- func:")[0]
    return frozenset(key for keys in re.findall(r"^    ([\w, ]+): ", entry, re.M) for key in keys.split(", "))
