"""Calls of attention, and torch's own choice of a kernel for each, by the device's capability alone.

As a script it prints a line of `attention_choices.txt`, which has releases of torch for CUDA 13:

    STAND_IN_CAPABILITY=8.9 tests/stand_in_gpu/python tests/predict/attention_calls.py
"""

import base64
import zlib
from itertools import product

import torch

MASKS = {"rows": (40, 40), "keys": (2, 1, 1, 40), "all heads": (2, 8, 40, 40), "some": (8, 40, 40), "trained": (40, 40)}
HEADS = (60, 63, 64, 128, 136, 192, 200, 256, 264, (192, 128))
WAYS = [
    *product((None, "causal", "expanded", *MASKS), (0.0, 0.1, 0.125), (40,), (40,), (True,)),
    *product((None, "causal"), (0.0, 0.125), (1, 40), (1, 56), (True,)),
    *product((None, "rows", "trained"), (0.0, 0.125), (40,), (40,), (False,)),
]
"""Mask, dropout, lengths of query and keys, whether a backward pass follows."""
GROUPS = ((8, False), (2, True), (1, False), (3, True))
"""Heads of the keys, to 8 of the queries, and `enable_gqa`."""
CALLS = [*product((torch.float32, torch.float16, torch.bfloat16), GROUPS, WAYS, HEADS)]


def call(choose, device, dtype, groups, way, heads):
    """Ask `choose`, a function of the arguments of `scaled_dot_product_attention`."""
    (num_heads, is_grouped), (mask, dropout, length, of_keys, follows) = groups, way
    head, of_value = heads if isinstance(heads, tuple) else (heads, heads)

    def tensor(*shape):
        return torch.empty(2, *shape, dtype=dtype, device=device, requires_grad=follows)

    values = None
    if mask == "expanded":
        values = torch.empty(40, 1, dtype=torch.bool, device=device).expand(40, 40)
    elif mask in MASKS:
        values = torch.empty(MASKS[mask], dtype=dtype, device=device, requires_grad=mask == "trained" and follows)
    inputs = tensor(8, length, head), tensor(num_heads, of_keys, head), tensor(num_heads, of_keys, of_value)
    return choose(*inputs, values, dropout, mask == "causal", enable_gqa=is_grouped)


def choices_of_torch():
    return "".join("mfec"[call(torch._fused_sdp_choice, "cuda", *inputs)] for inputs in CALLS)


if __name__ == "__main__":
    packed = base64.b85encode(zlib.compress(choices_of_torch().encode(), 9)).decode()
    print(".".join(torch.__version__.split(".")[:2]), "{}.{}".format(*torch.cuda.get_device_capability()), packed)
