"""Fused optimizer kernels: for which of its classes torch has them, on which device."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from ampsweep.observe.operators import has_kernel, on_real_tensors

_MORE_THAN_A_VECTOR: Final = 256


def has_fused_kernels(target: Any, device: str) -> bool:
    """Tell whether torch has fused kernels for its own optimizer class `target` on a type of device.

    They are the operator `_fused_NAME_`, of which torch's dispatcher knows whether a device has it. Where this build of
    torch lacks the device (a prediction for a GPU on a machine without), torch's own table of operators tells, which
    every build holds for its code generator. Neither is public API; a list here would age, as Adagrad's were once the
    CPU's alone.
    """
    operator = f"_fused_{getattr(target, '__name__', '').lower()}_"
    if device not in _get_fused_kernels_supported_devices() or not hasattr(torch.ops.aten, operator):
        return False
    key = device.upper()
    if device == "cuda" and torch.version.cuda is None:
        return key in _declared(operator)
    return has_kernel(f"aten::{operator}", key)


@cache
def leaves_parameters_unchanged(target: Any, dtype: torch.dtype) -> bool:
    """Tell whether the fused step of torch's own optimizer class on a CPU does not change parameters of this dtype.

    SGD's does not in torch 2.13, where a vector of the processor is full: 16 numbers in half precision. So it is tried,
    on more numbers than a vector holds; in a prediction, too, where tensors are fake otherwise.
    """
    with on_real_tensors():
        parameter = torch.nn.Parameter(torch.ones(_MORE_THAN_A_VECTOR, dtype=dtype, device="cpu"))
        parameter.grad = torch.full_like(parameter, 0.5)
        target([parameter], lr=1.0, fused=True).step()
        return bool((parameter == 1).any())


@cache
def _declared(operator: str) -> frozenset[str]:
    """The dispatch keys that an operator has kernels for, in torch's table of operators."""
    spec = find_spec("torchgen")
    assert spec is not None, "torch is installed with its code generator"
    assert spec.origin is not None
    table = Path(spec.origin).parent / "packaged/ATen/native/native_functions.yaml"
    entry = table.read_text(encoding="utf-8").partition(f"- func: {operator}(")[2].partition("\n- func:")[0]
    return frozenset(key for keys in re.findall(r"^    ([\w, ]+): ", entry, re.M) for key in keys.split(", "))


def has_fused_kernels_for_shards(target: Any) -> bool:
    """Tell whether the fused kernels of an optimizer class take sharded parameters, as FSDP2's are.

    A DTensor knows no other operators than those with a rule on how shards go through them; which ones have one is no
    public API.
    """
    from torch.distributed.tensor import DTensor  # a training in one process does without

    operator = getattr(torch.ops.aten, f"_fused_{getattr(target, '__name__', '').lower()}_", None)
    rules = DTensor._op_dispatcher.sharding_propagator
    tables = (rules.op_strategy_funcs, rules.op_single_dim_strategy_funcs)
    return operator is not None and any(operator.default in table for table in tables)
