"""A short hash that tells data sets apart."""

import hashlib

from torch import Tensor


def digest(*parts: str | bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all parts; where one ends and the next begins matters."""
    sha = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        sha.update(f"{len(content)}:".encode())
        sha.update(content)
    return sha.hexdigest()[:16]


def tensor_digest(*tensors: Tensor) -> str:
    """The digest of the types, shapes and bytes of tensors, wherever they live."""
    import torch

    parts: list[str | bytes] = []
    for tensor in tensors:
        parts.append(f"{tensor.dtype}{list(tensor.shape)}")
        parts.append(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest(*parts)
