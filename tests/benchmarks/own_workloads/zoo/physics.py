"""A physics-informed net (Raissi et al. 2019): the heat equation u_t = u_xx / 10, with u(0, x) = sin(pi x)."""

import torch
from torch import Tensor, nn


class Field(nn.Sequential):
    """Points (B, 2) of time and place to the temperature (B, 1)."""

    def __init__(self, width=32):
        super().__init__(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


class Points:
    """Points (B, 2) inside, at which the equation holds, and points (B, 2) with temperatures (B, 1) at the start."""

    num_train_batches = tokens_per_batch = None
    fingerprint = "points of the heat equation"

    def __init__(self, batch_size, seed, device):
        self.batch_size, self.seed, self.device = batch_size, seed, device

    def train_batch(self, index):
        return self.points(torch.Generator().manual_seed(1_000_003 * self.seed + index + 1))

    def val_batches(self):
        yield self.points(torch.Generator().manual_seed(2**40))

    def points(self, generator):
        inside = torch.rand(self.batch_size, 2, generator=generator)
        start = torch.rand(self.batch_size, 2, generator=generator) * torch.tensor([0.0, 1.0])
        batch = inside, start, torch.sin(torch.pi * start[:, 1:])
        return tuple(tensor.to(self.device) for tensor in batch)


class HeatEquation:
    """The mean squared residual of the equation, and of the temperatures at the start."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        inside, start, temperatures = batch
        with torch.enable_grad():  # an evaluation has it off, and needs the derivatives too
            inside = inside.detach().requires_grad_()
            slope = self.derivative(model(inside), inside)
            curvature = self.derivative(slope[:, 1:], inside)[:, 1:]
            residual = (slope[:, :1] - curvature / 10).square().mean()
        return residual + (model(start) - temperatures).square().mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], int]:
        return {"loss": self.loss(model, batch).detach()}, len(batch[0])

    def derivative(self, values, points):
        return torch.autograd.grad(values.sum(), points, create_graph=True)[0]
