"""Code that tests edit: functions in the places where users have them."""

import functools
from functools import partial

import torch
from torch import nn


class Base(nn.Module):
    def forward(self, x):
        return x + 1


class Derived(Base):
    def forward(self, x):
        return super().forward(x) * 2


class Exact(nn.Module):
    @torch.autocast("cpu", enabled=False)
    def forward(self, x):
        return torch.is_autocast_enabled("cpu")


def checked(forward):
    @functools.wraps(forward)
    @torch.autocast("cpu", enabled=False)
    def wrapped(x):
        return forward(x)

    return wrapped


@checked
def hidden(x):
    return torch.is_autocast_enabled("cpu")


def made(factor):
    def times(x):
        return x * factor

    return times


kept, in_partial = made(3), partial(lambda factor, x: x * factor, 5)


def unchanged(x):
    return x
