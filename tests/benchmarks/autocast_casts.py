"""The casts of CUDA's autocast, operator by operator: the installed torch's dispatcher against what predictions apply.

Every overload that autocast handles on CUDA or on the CPU is called with tensors of one and of two dtypes, with and
without a dtype asked for, under autocast to bfloat16 and to float16; the call that reaches the operator on fake CPU
tensors is compared with the one that reaches it on CUDA. The dispatcher answers without a GPU and without CUDA. Its
casts are printed by kind. Exit code 1: calls differ.
"""

import json
import sys
from itertools import product

import torch

from ampsweep.predict.autocast_dispatch import (
    RefusedCallError,
    autocast_operators,
    call_under_autocast,
    dispatched_casts,
)
from ampsweep.predict.cuda_autocast import CAST_ONLY
from ampsweep.predict.cuda_operators import cuda_dispatch
from ampsweep.predict.target_device import TargetDevice

HALVES = (torch.bfloat16, torch.float16)
DTYPES = (*HALVES, torch.float32, torch.float64, torch.int64)
OF_ONE_DEVICE = {"_cudnn_rnn", "mkldnn_rnn_layer", CAST_ONLY}
"""Operators with no counterpart to compare with."""


def main() -> int:
    on_cuda = dispatched_casts("cuda")
    names = sorted({*autocast_operators("cuda"), *autocast_operators("cpu")} - OF_ONE_DEVICE)
    given = [*((dtype,) for dtype in DTYPES), *product(DTYPES, DTYPES)]
    calls = [*product(names, given, HALVES, (None, torch.float64))]
    asked = [outcome(name, "cuda", *how) for name, *how in calls]
    with cuda_dispatch(TargetDevice("cuda")):
        ours = [outcome(name, "cpu", *how) for name, *how in calls]
    differing = sorted({call[0] for call, a, b in zip(calls, asked, ours, strict=True) if a != b})
    answer = {
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "operators_cast_on_cuda": len(on_cuda),
        "operators_cast_on_cpu": len(dispatched_casts("cpu")),
        "operators_compared": len(names),
        "calls_compared": len(calls),
        "refused_calls": asked.count("refused"),
        "calls_differ": differing,
        "casts": {kind: sorted(name for name in on_cuda if on_cuda[name] == kind) for kind in {*on_cuda.values()}},
    }
    print(json.dumps(answer, indent=1))
    return 1 if differing else 0


def outcome(name, device_type, dtypes, autocast_dtype, requested):
    try:
        return call_under_autocast(name, device_type, dtypes, autocast_dtype, requested)
    except RefusedCallError:
        return "refused"


if __name__ == "__main__":
    sys.exit(main())
