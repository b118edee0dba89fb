"""Models of a user's own whose gradients are few, changed or complex, and a task that averages weights."""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ampsweep.tasks.classification import Classification


class Unused(nn.Module):
    """Holds a layer that no step calls: no gradient reaches it, and it has no optimizer state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.first(images.flatten(1)).relu())


class Hooked(nn.Module):
    """Changes the gradient of a weight by a hook, and notes its size by another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)
        self.register_buffer("norm", torch.zeros(()))
        self.first.weight.register_hook(lambda gradient: 0.5 * gradient)
        self.first.weight.register_post_accumulate_grad_hook(self._note)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.first(images.flatten(1)).relu())

    def _note(self, weight: Tensor) -> None:
        self.norm = (3 * weight.grad).norm()


class Waves(nn.Module):
    """Weighs the waves of an image by complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(0.1 * torch.randn(8, 5, dtype=torch.complex64))
        self.last = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        waves = torch.fft.rfft2(images[:, 0].float()) * self.weights
        return self.last(torch.fft.irfft2(waves, s=(8, 8)).flatten(1).to(images.dtype))


class Averaging(Classification):
    """Averages the weights after each step, by a copy that the first one makes."""

    average: AveragedModel | None = None

    def after_step(self, model: nn.Module) -> None:
        self.average = self.average or AveragedModel(model)
        self.average.update_parameters(model)
