"""Random numbers that depend on a key alone, not on what was drawn before."""

import hashlib

import torch


def generator(*key: str | int) -> torch.Generator:
    """A CPU generator seeded by a hash of ``key``, so that near keys, as (0, 1) and (1, 0), share nothing.

    Always on the CPU, so that the values are the same on every device.
    """
    hashed = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    # 32 bits are what the CPU generator (a Mersenne Twister) takes of its seed.
    return torch.Generator().manual_seed(int.from_bytes(hashed[:4], "little"))
