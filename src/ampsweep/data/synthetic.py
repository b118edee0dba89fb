"""Random data that stays on the device, as in the PyTorch AMP recipe, so that a step spends no time on data.

See https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html. There is nothing to learn from it: a falling
training loss means that the model memorizes the batches.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ampsweep.argument_checks import require_positive
from ampsweep.data.base import Batch
from ampsweep.data.fingerprint import digest
from ampsweep.data.seeding import generator

Sample = Callable[[torch.Generator | None], tuple[Tensor, Tensor]]
"""A function that draws one batch on the default device; with a generator that is the CPU."""


class _Synthetic:
    """``num_batches`` training batches, visited in turn, and one validation batch that is the same for every seed.

    The values are drawn on the CPU and then moved, so that they are the same on every device. ``sizes`` define an item;
    any size below 1 raises a ``ValueError``.
    """

    tokens_per_batch: int | None = None

    def __init__(
        self, sample: Sample, sizes: dict[str, int], num_batches: int, batch_size: int, seed: int, device: torch.device
    ) -> None:
        require_positive(**sizes, num_batches=num_batches, batch_size=batch_size)
        self.batch_size = batch_size
        self.num_train_batches = num_batches
        self.fingerprint = digest(type(self).__name__, repr(sizes), repr(num_batches))
        self._train = [_drawn(device, sample, "train", seed, index) for index in range(num_batches)]
        self._val = _drawn(device, sample, "val")

    def train_batch(self, index: int) -> Batch:
        """Batch ``index`` modulo ``num_batches``."""
        return self._train[index % self.num_train_batches]

    def val_batches(self) -> Iterator[Batch]:
        """The one validation batch."""
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
        def sample(rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
            inputs = torch.randn(batch_size, in_features, generator=rng)
            return inputs, torch.randn(batch_size, out_features, generator=rng)

        sizes = {"in_features": in_features, "out_features": out_features}
        super().__init__(sample, sizes, num_batches, batch_size, seed, device)


class SyntheticTokens(_Synthetic):
    """Uniform token ids (B, seq_len) and the ids that follow them, int64."""

    def __init__(
        self, *, vocab_size: int, seq_len: int, num_batches: int, batch_size: int, seed: int, device: torch.device
    ) -> None:
        def sample(rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
            tokens = torch.randint(vocab_size, (batch_size, seq_len + 1), generator=rng)
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

        sizes = {"vocab_size": vocab_size, "seq_len": seq_len}
        super().__init__(sample, sizes, num_batches, batch_size, seed, device)
        self.tokens_per_batch = batch_size * seq_len


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
        def sample(rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
            images = torch.randn(batch_size, in_channels, image_size, image_size, generator=rng)
            return images, torch.randint(num_classes, (batch_size,), generator=rng)

        sizes = {"image_size": image_size, "in_channels": in_channels, "num_classes": num_classes}
        super().__init__(sample, sizes, num_batches, batch_size, seed, device)


def _drawn(device: torch.device, sample: Sample, *key: str | int) -> Batch:
    if device.type == "meta":  # without values there is nothing to draw
        with device:
            return sample(None)
    inputs, targets = sample(generator(*key))
    return inputs.to(device), targets.to(device)
