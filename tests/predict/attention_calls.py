"""Calls of attention, and the kernel of CUDA that torch itself chooses for each; nothing is computed.

`attention_choices.txt` has the choices of the releases of torch for CUDA 13, a line for each compute capability:

    STAND_IN_CAPABILITY=8.9 tests/stand_in_gpu/python tests/predict/attention_calls.py >> attention_choices.txt
"""

from itertools import groupby, product

import torch

KERNELS = "mfec"
"""math, flash, efficient and cuDNN, by the numbers of `torch.nn.attention.SDPBackend`."""
MASKS = {
    "rows": ((40, 40), torch.bool),
    "keys": ((2, 1, 1, 40), torch.bool),
    "expanded": ((40, 1), torch.bool),
    "of heads": ((8, 40, 40), torch.bool),
    "trained": ((40, 40), torch.float32),
}
CALLS = [
    *product(
        (torch.float32, torch.float16, torch.bfloat16),
        ((8, 8, False), (8, 2, True), (8, 1, False), (6, 4, True)),
        (None, "causal", *MASKS),
        (0.0, 0.1, 0.125),
        ((40, 40), (1, 40), (40, 56), (40, 1)),
        (True, False),
        (60, 63, 64, 128, 136, 192, 200, 240, 256, 264, (64, 128), (192, 128)),
    )
]
