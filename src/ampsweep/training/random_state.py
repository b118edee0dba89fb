"""The states of the random number generators that a training draws from, as plain values."""

import random
from hashlib import blake2b
from typing import Any

import numpy as np
import torch


def rng_state(device: torch.device) -> dict[str, Any]:
    """State of Python's, NumPy's and torch's generators, as tensors and plain numbers."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Continue the generators where `rng_state` left them; a device that was not saved keeps its seed."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])


def fresh_rng_state(state: dict[str, Any], rank: int, world_size: int, device: torch.device) -> dict[str, Any]:
    """Derive the generators of a rank from a `state` that is of another number of ranks: a function of these three."""
    origin = state["torch"].numpy().tobytes() + f"{rank} of {world_size}".encode()
    seed = int.from_bytes(blake2b(origin, digest_size=8).digest())
    name, keys, position, has_gauss, cached = np.random.RandomState(seed % 2**32).get_state(legacy=True)
    fresh: dict[str, Any] = {
        "python": random.Random(seed).getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.Generator().manual_seed(seed).get_state(),
    }
    if device.type in ("cuda", "mps"):
        fresh[device.type] = torch.Generator(device).manual_seed(seed).get_state()
    return fresh
