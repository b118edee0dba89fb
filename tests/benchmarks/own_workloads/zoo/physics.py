"""A physics-informed net (Raissi et al. 2019): the heat equation u_t = u_xx / 10, with u(0, x) = sin(pi x)."""

import torch
from torch import Tensor, nn

from zoo import OneLoss, SeededBatches


class Field(nn.Sequential):
    """Points (B, 2) of time and place to the temperature (B, 1)."""

    def __init__(self, width=32):
        super().__init__(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


class Points(SeededBatches):
    """Points (B, 2) inside, at which the equation holds, and points (B, 2) with temperatures (B, 1) at the start."""

    fingerprint = "points of the heat equation"

    def batch(self, generator):
        inside = torch.rand(self.batch_size, 2, generator=generator)
        start = torch.rand(self.batch_size, 2, generator=generator) * torch.tensor([0.0, 1.0])
        batch = inside, start, torch.sin(torch.pi * start[:, 1:])
        return tuple(tensor.to(self.device) for tensor in batch)


class HeatEquation(OneLoss):
    """The mean squared residual of the equation, and of the temperatures at the start."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        inside, start, temperatures = batch
        with torch.enable_grad():  # an evaluation has it off, and needs the derivatives too
            inside = inside.detach().requires_grad_()
            slope = self.derivative(model(inside), inside)
            curvature = self.derivative(slope[:, 1:], inside)[:, 1:]
            residual = (slope[:, :1] - curvature / 10).square().mean()
        return residual + (model(start) - temperatures).square().mean()

    def derivative(self, values, points):
        return torch.autograd.grad(values.sum(), points, create_graph=True)[0]
