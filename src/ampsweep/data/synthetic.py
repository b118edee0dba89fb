"""Random data that stays on the device, as in the PyTorch AMP recipe, so that a step spends no time on data.

See https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html. There is nothing to learn from it: a falling
training loss means that the model memorizes the batches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import Batch
from ampsweep.data.fingerprint import digest
from ampsweep.data.seeding import generator

Fill = Callable[[Tensor, torch.Generator], object]
"""A function that draws the values of a tensor in place."""


_AT_ONCE: Final = 16
"""Items that are drawn together, whatever the size of a batch."""


@dataclass(frozen=True)
class Drawn:
    """A part of an item."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Fill


def _normal(*shape: int) -> Drawn:
    return Drawn(shape, torch.float32, lambda values, rng: values.normal_(generator=rng))


def _below(limit: int, *shape: int) -> Drawn:
    return Drawn(shape, torch.int64, lambda values, rng: values.random_(limit, generator=rng))


class _Synthetic:
    """``num_batches`` training batches, visited in turn, and one validation batch that is the same for every seed.

    The values are drawn on the CPU and then moved, so that they are the same on every device. The items are the same
    ones in batches of any size: how many there are is ``num_batches * batch_size``. ``sizes`` define an item; any size
    below 1 raises a ``ValueError``.
    """

    tokens_per_batch: int | None = None
    num_val_batches = 1

    def __init__(
        self,
        parts: list[Drawn],
        sizes: dict[str, int],
        num_batches: int,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        require_positive(**sizes, num_batches=num_batches, batch_size=batch_size)
        self.batch_size = batch_size
        self.num_train_batches = num_batches
        self.fingerprint = digest(type(self).__name__, repr(sizes), repr(num_batches))
        self._train = [*map(self._batch, _drawn(device, parts, batch_size, num_batches, "train", seed))]
        (self._val,) = map(self._batch, _drawn(device, parts, batch_size, 1, "val"))

    def _batch(self, parts: list[Tensor]) -> Batch:
        inputs, targets = parts
        return inputs, targets

    def train_batch(self, index: int) -> Batch:
        """Batch ``index`` modulo ``num_batches``."""
        return self._train[index % self.num_train_batches]

    def val_batch(self, index: int) -> Batch:
        """The one validation batch."""
        assert index == 0
        return self._val

    def val_batches(self) -> Iterator[Batch]:
        yield self._val


class SyntheticRegression(_Synthetic):
    """Normal inputs (B, in_features) and targets (B, out_features), float32."""

    def __init__(
        self,
        *,
        in_features: int,
        out_features: int,
        num_batches: int,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        sizes = {"in_features": in_features, "out_features": out_features}
        super().__init__([_normal(in_features), _normal(out_features)], sizes, num_batches, batch_size, seed, device)


class SyntheticTokens(_Synthetic):
    """Uniform token ids (B, seq_len) and the ids that follow them, int64."""

    def __init__(
        self, *, vocab_size: int, seq_len: int, num_batches: int, batch_size: int, seed: int, device: torch.device
    ) -> None:
        sizes = {"vocab_size": vocab_size, "seq_len": seq_len}
        super().__init__([_below(vocab_size, seq_len + 1)], sizes, num_batches, batch_size, seed, device)
        self.tokens_per_batch = batch_size * seq_len

    def _batch(self, parts: list[Tensor]) -> Batch:
        (tokens,) = parts
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class SyntheticImages(_Synthetic):
    """Normal images (B, in_channels, image_size, image_size), float32, and uniform classes (B,), int64."""

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        num_batches: int,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        sizes = {"image_size": image_size, "in_channels": in_channels, "num_classes": num_classes}
        parts = [_normal(in_channels, image_size, image_size), _below(num_classes)]
        super().__init__(parts, sizes, num_batches, batch_size, seed, device)


def _drawn(
    device: torch.device, parts: list[Drawn], batch_size: int, num_batches: int, *key: str | int
) -> Iterator[list[Tensor]]:
    """Draw batches of the items that `key` stands for, part by part."""
    for index in range(num_batches):
        home = device if device.type == "meta" else "cpu"  # on meta there is nothing to draw
        batch = [torch.empty(batch_size, *part.shape, dtype=part.dtype, device=home) for part in parts]
        first, end = index * batch_size, (index + 1) * batch_size
        for number in range(first // _AT_ONCE, -(-end // _AT_ONCE)) if device.type != "meta" else ():
            begin, rng = number * _AT_ONCE, generator(*key, number)
            wanted = slice(max(first, begin) - first, min(end, begin + _AT_ONCE) - first)
            for part, values in zip(parts, batch, strict=True):
                if wanted.stop - wanted.start == _AT_ONCE:
                    part.fill(values[wanted], rng)
                    continue
                whole = torch.empty(_AT_ONCE, *part.shape, dtype=part.dtype)
                part.fill(whole, rng)
                values[wanted] = whole[wanted.start + first - begin :][: wanted.stop - wanted.start]
        yield [values.to(device) for values in batch]
