"""Models as users write them: with few, changed or complex gradients, recurrent, or looking at values."""

from time import sleep

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Dataset

from ampsweep.tasks.classification import Classification


class Mlp(nn.Module):
    """Logits (B, 10) of images (B, 1, 8, 8)."""

    def __init__(self, between: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(64, 32), between or nn.ReLU(), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.between(self.first(images.flatten(1))))


def unused() -> Mlp:
    """Has a layer that no step calls: it gets no gradient and no optimizer state."""
    model = Mlp()
    model.unused = nn.Linear(32, 32)
    return model


def hooked() -> Mlp:
    """Changes the gradient of a weight by one hook, and notes its size by another."""
    model = Mlp()
    model.register_buffer("norm", torch.zeros(()))
    model.first.weight.register_hook(lambda gradient: 0.5 * gradient)
    note = lambda weight: setattr(model, "norm", (3 * weight.grad).norm())  # noqa: E731
    model.first.weight.register_post_accumulate_grad_hook(note)
    return model


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights, self.last = nn.Parameter(0.1 * torch.randn(8, 5, dtype=torch.complex64)), nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        waves = torch.fft.rfft2(images[:, 0].float()) * self.weights
        return self.last(torch.fft.irfft2(waves, s=(8, 8)).flatten(1).to(images.dtype))


class Contrastive(Mlp):
    """Compares all images of a batch with each other."""

    def forward(self, images: Tensor) -> Tensor:
        rows = self.first(images.flatten(1))
        return self.last(rows) + (rows @ rows.T).logsumexp(1, keepdim=True)


class SlowImages(Dataset[tuple[Tensor, int]]):
    """Takes 3 ms to read an image (1, 8, 8)."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        sleep(0.003)
        return torch.full((1, 8, 8), float(item)), item % 10


class Averaging(Classification):
    """A task that averages the weights after each step, in a copy that the first step makes."""

    average: AveragedModel | None = None

    def after_step(self, model: nn.Module) -> None:
        self.average = self.average or AveragedModel(model)
        self.average.update_parameters(model)


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return 2 * x


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda _, gradient: 2 * gradient)


class Between(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.forward = function


def mlp_with(function):
    return lambda: Mlp(Between(function))


own_operator = mlp_with(doubled)
branching = mlp_with(lambda x: x if x.sum() > 0 else 2 * x)
selecting = mlp_with(lambda x: x + x[x[:, 0] > torch.zeros(())].sum())
refused = mlp_with(lambda x: x + nn.BCELoss()(x.sigmoid(), torch.ones_like(x)))
"""Has a loss within, of the kind that CUDA's autocast refuses."""


def changed_mask(ids: Tensor, x: Tensor) -> Tensor:
    """The mask is changed in place, and looked at through another view of it."""
    hidden = torch.zeros_like(ids, dtype=torch.bool)
    hidden[:, 0].fill_(True)
    return x if not hidden.view(-1).any() else x.masked_fill(hidden[..., None], 0)


def overwritten(ids: Tensor, x: Tensor) -> Tensor:
    """The mask is known until activations are written into it."""
    hidden = torch.zeros_like(ids, dtype=torch.bool)
    hidden[:, :] = x[..., 0] > 0
    return x if hidden.any() else 2 * x


LOOKS = {
    "mask": lambda ids, x: x if not (hidden := ids >= 256).any() else x.masked_fill(hidden[..., None], 0),
    "positions": lambda ids, x: x if bool((torch.arange(ids.shape[1]).diff() == 1).all()) else x.roll(1, 1),
    "places": lambda ids, x: x + x[torch.nonzero(ids % 2 == 0, as_tuple=True)].mean(0),
    "drawn": lambda ids, x: x if torch.randint(2, ()).bool() else 2 * x,
    "changed_mask": changed_mask,
    "overwritten": overwritten,
}


class Looking(nn.Module):
    """Logits (B, T, 256) of ids (B, T), which depend on values: those of masks and positions the host knows."""

    def __init__(self, looks_at: str) -> None:
        super().__init__()
        self.embedding, self.head, self.look = nn.Embedding(256, 16), nn.Linear(16, 256), LOOKS[looks_at]

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.look(ids, self.embedding(ids)))


class Recurrent(nn.Module):
    """Logits (B, T, 50) of ids (B, T), by layers of `kind`: LSTM, GRU or RNN."""

    def __init__(self, kind: str = "LSTM", packed: bool = False, num_layers: int = 1, **settings: object) -> None:
        super().__init__()
        self.embedding, self.packed = nn.Embedding(50, 16), packed
        self.layers: nn.RNNBase = getattr(nn, kind)(16, 32, num_layers, **{"batch_first": True} | settings)
        self.head = nn.Linear((self.layers.proj_size or 32) * (1 + self.layers.bidirectional), 50)

    def forward(self, ids: Tensor) -> Tensor:
        x, first = self.embedding(ids), self.layers.batch_first
        if self.packed:
            x = nn.utils.rnn.pack_padded_sequence(x, torch.full((len(ids),), ids.shape[1]), batch_first=first)
            return self.head(nn.utils.rnn.pad_packed_sequence(self.layers(x)[0], batch_first=first)[0])
        output = self.layers(x if first else x.transpose(0, 1))[0]
        return self.head(output if first else output.transpose(0, 1))
