"""Sizes of a run's matrix products that tensor cores cannot take at full rate."""

from collections.abc import Mapping
from typing import Any, Final

from ampsweep.record import RunRecord

MULTIPLE: Final = 8
"""16 bytes of a 16-bit type: sizes that are no multiple of it are slower, or before cuBLAS 11 not done by tensor cores.
Source: NVIDIA, Matrix Multiplication Background User's Guide, "Tensor Core Requirements"."""

_SIZES: Final = ("hidden_size", "vocab_size", "in_features", "out_features")


def odd_sizes(record: RunRecord) -> dict[str, int]:
    """Config keys (or products of them) with sizes that are no multiple of 8; empty where the config names none."""
    model, identity = _mapping(record.config.get("model")), record.identity
    known = {key: size for key, size in model.items() if type(size) is int and size > 0}
    sizes = {f"model.{key}": known[key] for key in _SIZES if key in known}
    if "hidden_size" in known and "num_heads" in known:
        sizes["model.hidden_size / model.num_heads"] = known["hidden_size"] // known["num_heads"]
    rows = "data.batch_size" if identity.seq_len is None else "data.batch_size * data.seq_len"
    sizes[rows] = identity.batch_size * (identity.seq_len or 1)
    return {key: size for key, size in sizes.items() if size % MULTIPLE}


def _mapping(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else {}
