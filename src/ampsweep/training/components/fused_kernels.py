"""Fused optimizer kernels: which of its classes torch has them for, on which device."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from ampsweep.observe.operators import has_kernel

FUSED_FOR_SHARDS: Final = (torch.optim.Adam, torch.optim.AdamW)  # take shards, such as FSDP2's (torch 2.11 to 2.15)


def has_fused_kernels(target: Any, device: str) -> bool:
    """Return True if torch has fused kernels for its own optimizer class `target` on a type of device.

    The dispatcher knows which devices have the operator `_fused_NAME_`; if this build of torch lacks the device, the
    operator table of torch's code generator is read. Neither is public API, but a list here would age.
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
    """Return the dispatch keys that an operator has kernels for, from torch's table of operators."""
    spec = find_spec("torchgen")
    assert spec is not None, "torch is installed with its code generator"
    assert spec.origin is not None
    table = Path(spec.origin).parent / "packaged/ATen/native/native_functions.yaml"
    entry = table.read_text(encoding="utf-8").partition(f"- func: {operator}(")[2].partition("\n- func:")[0]
    return frozenset(key for keys in re.findall(r"^    ([\w, ]+): ", entry, re.M) for key in keys.split(", "))
