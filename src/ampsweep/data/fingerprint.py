"""Short hashes that distinguish data sets."""

import hashlib
from typing import Any

import torch
from torch import Tensor


def digest(*parts: str | bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all parts and of their lengths."""
    sha = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        sha.update(f"{len(content)}:".encode())
        sha.update(content)
    return sha.hexdigest()[:16]


def tensor_digest(*tensors: Tensor) -> str:
    """The digest of the dtypes, shapes and bytes of tensors on any device."""
    parts: list[str | bytes] = []
    for tensor in tensors:
        parts.append(f"{tensor.dtype}{list(tensor.shape)}")
        parts.append(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest(*parts)


def batch_digest(batch: Any) -> str:
    """The digest of tensors, and of other values by their ``repr``, nested in dicts, lists and tuples."""
    if isinstance(batch, Tensor):
        return tensor_digest(batch)
    if isinstance(batch, dict):
        return digest(*(part for key, value in batch.items() for part in (repr(key), batch_digest(value))))
    if isinstance(batch, (list, tuple)):
        return digest(*(batch_digest(value) for value in batch))
    return digest(repr(batch))
