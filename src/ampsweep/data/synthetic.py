"""Random data resident on the device (https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html)."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import Batch
from ampsweep.data.fingerprint import digest
from ampsweep.data.seeding import generator

_AT_ONCE: Final = 16  # items that are drawn together, independent of the batch size


class Common(TypedDict):
    """The arguments of all synthetic data."""

    num_batches: int
    batch_size: int
    seed: int
    device: torch.device


class Drawn(NamedTuple):
    """A part of an item: standard normal numbers (float32), or uniform integers below a limit (int64)."""

    shape: tuple[int, ...]
    limit: int | None = None

    def empty(self, num_items: int, device: str) -> Tensor:
        dtype = torch.float32 if self.limit is None else torch.int64
        return torch.empty(num_items, *self.shape, dtype=dtype, device=device)

    def fill(self, values: Tensor, rng: torch.Generator) -> None:
        if self.limit is None:
            values.normal_(generator=rng)
        else:
            values.random_(self.limit, generator=rng)


class _Synthetic:
    """``num_batches`` training batches, visited in turn, and one validation batch that is the same for every seed.

    There is nothing to learn: a falling training loss means that the model memorizes the batches. Values are drawn on
    the CPU, and are the same on every device and in batches of any size. ``sizes`` define an item; any size below 1
    raises a ``ValueError``.
    """

    tokens_per_batch: int | None = None
    num_val_batches = 1

    def __init__(
        self,
        parts: Sequence[Drawn],
        sizes: dict[str, int],
        *,
        num_batches: int,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        require_positive(**sizes, num_batches=num_batches, batch_size=batch_size)
        self.batch_size, self.num_train_batches = batch_size, num_batches
        self.fingerprint = digest(type(self).__name__, repr(sizes), repr(num_batches))
        self._train = self._drawn(parts, num_batches, device, "train", seed)
        (self._val,) = self._drawn(parts, 1, device, "val")

    def _drawn(self, parts: Sequence[Drawn], num_batches: int, device: torch.device, *key: str | int) -> list[Batch]:
        num_drawings = -(-num_batches * self.batch_size // _AT_ONCE)
        home = "meta" if device.type == "meta" else "cpu"  # on meta there is nothing to draw
        drawn = [part.empty(num_drawings * _AT_ONCE, home) for part in parts]
        for number in range(num_drawings) if home == "cpu" else ():
            rng = generator(*key, number)
            for part, values in zip(parts, drawn, strict=True):
                part.fill(values[number * _AT_ONCE : (number + 1) * _AT_ONCE], rng)
        batches = [torch.split(values, self.batch_size)[:num_batches] for values in drawn]
        return [self._batch([part.to(device, copy=True) for part in batch]) for batch in zip(*batches, strict=True)]

    def _batch(self, parts: list[Tensor]) -> Batch:
        inputs, targets = parts
        return inputs, targets

    def train_batch(self, index: int) -> Batch:
        return self._train[index % self.num_train_batches]

    def val_batch(self, index: int) -> Batch:
        assert index == 0
        return self._val

    def val_batches(self) -> Iterator[Batch]:
        yield self._val


class SyntheticRegression(_Synthetic):
    """Normal inputs (B, in_features) and targets (B, out_features), float32."""

    def __init__(self, *, in_features: int, out_features: int, **common: Unpack[Common]) -> None:
        sizes = {"in_features": in_features, "out_features": out_features}
        super().__init__([Drawn((in_features,)), Drawn((out_features,))], sizes, **common)


class SyntheticTokens(_Synthetic):
    """Uniform token ids (B, seq_len) and the ids that follow them, int64."""

    def __init__(self, *, vocab_size: int, seq_len: int, **common: Unpack[Common]) -> None:
        sizes = {"vocab_size": vocab_size, "seq_len": seq_len}
        super().__init__([Drawn((seq_len + 1,), vocab_size)], sizes, **common)
        self.tokens_per_batch = self.batch_size * seq_len

    def _batch(self, parts: list[Tensor]) -> Batch:
        (tokens,) = parts
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class SyntheticImages(_Synthetic):
    """Normal images (B, in_channels, image_size, image_size), float32, and uniform classes (B,), int64."""

    def __init__(self, *, image_size: int, in_channels: int, num_classes: int, **common: Unpack[Common]) -> None:
        sizes = {"image_size": image_size, "in_channels": in_channels, "num_classes": num_classes}
        super().__init__([Drawn((in_channels, image_size, image_size)), Drawn((), num_classes)], sizes, **common)
