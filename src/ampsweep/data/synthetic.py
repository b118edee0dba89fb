"""Random data resident on the device (https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html)."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.data.base import Batch
from ampsweep.data.fingerprint import digest
from ampsweep.data.seeding import generator

_AT_ONCE: Final = 16  # items that are drawn together, independent of the batch size


Part = tuple[tuple[int, ...], int | None]
"""A part of an item: its shape, and the limit of its uniform integers (int64); None: normal numbers (float32)."""


class _Synthetic:
    """``num_batches`` training batches, visited in turn, and one validation batch that is the same for every seed.

    There is nothing to learn: a falling training loss means that the model memorizes the batches. Values are drawn on
    the CPU, and are the same on every device and in batches of any size. ``sizes`` define an item.
    """

    tokens_per_batch: int | None = None
    num_val_batches = 1

    def __init__(
        self,
        parts: Sequence[Part],
        sizes: dict[str, int],
        *,
        num_batches: int,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.batch_size, self.num_train_batches = batch_size, num_batches
        self.fingerprint = digest(type(self).__name__, repr(sizes), repr(num_batches))
        self._train = self._drawn(parts, num_batches, device, "train", seed)
        (self._val,) = self._drawn(parts, 1, device, "val")

    def _drawn(self, parts: Sequence[Part], num_batches: int, device: torch.device, *key: str | int) -> list[Batch]:
        num_drawings = -(-num_batches * self.batch_size // _AT_ONCE)
        home = "meta" if device.type == "meta" else "cpu"  # on meta there is nothing to draw
        dtypes = [torch.float32 if limit is None else torch.int64 for _, limit in parts]
        sizes = [(num_drawings * _AT_ONCE, *shape) for shape, _ in parts]
        drawn = [torch.empty(size, dtype=dtype, device=home) for size, dtype in zip(sizes, dtypes, strict=True)]
        for number in range(num_drawings) if home == "cpu" else ():
            rng = generator(*key, number)
            for (_, limit), whole in zip(parts, drawn, strict=True):
                values = whole[number * _AT_ONCE : (number + 1) * _AT_ONCE]
                if limit is None:
                    values.normal_(generator=rng)
                else:
                    values.random_(limit, generator=rng)
        batches = [torch.split(values, self.batch_size)[:num_batches] for values in drawn]
        return [self._batch(*(part.to(device, copy=True) for part in batch)) for batch in zip(*batches, strict=True)]

    def _batch(self, *parts: Tensor) -> Batch:
        inputs, targets = parts
        return inputs, targets

    def train_batch(self, index: int) -> Batch:
        return self._train[index % self.num_train_batches]

    def val_batch(self, index: int) -> Batch:
        return self._val

    def val_batches(self) -> Iterator[Batch]:
        yield self._val


class SyntheticRegression(_Synthetic):
    """Normal inputs (B, in_features) and targets (B, out_features), float32."""

    def __init__(self, *, in_features: int, out_features: int, **common: Any) -> None:
        sizes = {"in_features": in_features, "out_features": out_features}
        super().__init__([((in_features,), None), ((out_features,), None)], sizes, **common)


class SyntheticTokens(_Synthetic):
    """Uniform token ids (B, seq_len) and the ids that follow them, int64."""

    def __init__(self, *, vocab_size: int, seq_len: int, **common: Any) -> None:
        sizes = {"vocab_size": vocab_size, "seq_len": seq_len}
        super().__init__([((seq_len + 1,), vocab_size)], sizes, **common)
        self.tokens_per_batch = self.batch_size * seq_len

    def _batch(self, *parts: Tensor) -> Batch:
        (tokens,) = parts
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class SyntheticImages(_Synthetic):
    """Normal images (B, in_channels, image_size, image_size), float32, and uniform classes (B,), int64."""

    def __init__(self, *, image_size: int, in_channels: int, num_classes: int, **common: Any) -> None:
        sizes = {"image_size": image_size, "in_channels": in_channels, "num_classes": num_classes}
        super().__init__([((in_channels, image_size, image_size), None), ((), num_classes)], sizes, **common)
