"""Models and data of `bad_models.py`: tiny ones that do something bad at a moment of their training."""

import ctypes
import os
import signal
import sys
import time
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampsweep.data.synthetic import SyntheticRegression

AT: Final = 3
"""The step, from 1, in which a deed is done that belongs to a step."""


def do(deed: str) -> None:
    """Do something after which nothing goes on as it should."""
    match deed:
        case "raise":
            raise ArithmeticError("a bad model")
        case "exit":
            sys.exit(3)
        case "leave":
            os._exit(7)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "abort":
            os.kill(os.getpid(), signal.SIGABRT)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "no_memory":
            torch.empty(10**15)
        case "sleep":
            time.sleep(10_000)
        case "spin":
            while True:
                pass
        case "hold_python":
            ctypes.PyDLL(None).sleep(10_000)


class _InBackward(torch.autograd.Function):
    """The identity, with a deed in its backward pass."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, deed: str) -> Tensor:
        context.deed = deed
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        do(context.deed)
        return gradient, None


class Model(nn.Module):
    """A linear layer with a `case`, `DEED-MOMENT-NUMBER`; nothing happens on the meta device, where it is checked."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self._deed, self._moment, _ = case.split("-")
        self._num_steps = 0
        if self.layer.weight.device.type == "meta":
            return
        if self._moment == "construction":
            do(self._deed)
        if self._moment == "optimizer":
            register_optimizer_step_pre_hook(self._before_optimizer)

    def _before_optimizer(self, *_: object) -> None:
        if self._num_steps == AT:
            do(self._deed)

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.device.type == "meta":
            return self.layer(inputs)
        self._num_steps += self.training
        outputs = self.layer(inputs)
        if self._moment == "evaluation" and not self.training:
            do(self._deed)
        if self.training and self._num_steps == AT:
            if self._moment == "forward":
                do(self._deed)
            if self._moment == "backward":
                return _InBackward.apply(outputs, self._deed)
        return outputs


class Data(SyntheticRegression):
    """Random numbers whose batch is what a `case` with the moment `data` spoils: a later one than is checked before."""

    def __init__(self, case: str, **settings: Any) -> None:
        super().__init__(in_features=4, out_features=2, num_batches=8, **settings)
        self._deed, self._moment, _ = case.split("-")

    def train_batch(self, index: int) -> Any:
        if self._moment == "data" and index == AT:
            do(self._deed)
        return super().train_batch(index)
