"""A device that exists in sizes only: tensors on it have shapes, dtypes and storages, and no values."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer

from ampsweep.predict.cuda_dispatch import cuda_dispatch
from ampsweep.predict.cuda_scratch import scratch_bytes
from ampsweep.predict.kernels import Kernels
from ampsweep.predict.landing import Landing
from ampsweep.predict.residents import Residents
from ampsweep.predict.target import Target
from ampsweep.tracing.step import Trace, trace_program, trace_step

CPU: Final = torch.device("cpu")


class FakeDevice:
    """Within its context whatever is computed allocates what it would on `target`, and nothing here.

    Everything in it is on fake CPU tensors, for CUDA too, whose dispatch is put in their place: fake CUDA tensors need
    a CUDA build of torch and its GPU (on the CPU build they abort the process), and a prediction must be the same
    everywhere. torch's FakeTensorMode is not public, but what torch.compile and torch.export stand on.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kernels = Kernels(target)
        self._residents = Residents()
        self.landing = Landing(self.kernels, self._residents)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """On this device."""
        with ExitStack() as stack:
            if self.target.kind == "cuda":
                stack.enter_context(cuda_dispatch(self.target))
            stack.enter_context(self.kernels)
            yield

    @contextmanager
    def furnishing(self) -> Iterator[None]:
        """On this device, where what is made inside and kept counts as resident, as data does."""
        with self(), self._residents:
            yield

    def adopt(self, model: nn.Module) -> nn.Module:
        """Bring a model that was built on torch's meta device here, in place; tied parameters stay tied.

        `Module.to` does not do for fake tensors: it swaps them, which fails where anything refers to them weakly.
        """
        here: dict[Tensor, Tensor] = {}
        with self():
            for module in model.modules():
                for name, parameter in [*module.named_parameters(recurse=False, remove_duplicate=False)]:
                    if parameter not in here:
                        here[parameter] = nn.Parameter(_like(parameter), requires_grad=parameter.requires_grad)
                    setattr(module, name, here[parameter])
                for name, buffer in [*module.named_buffers(recurse=False, remove_duplicate=False)]:
                    setattr(module, name, here.setdefault(buffer, _like(buffer)))
        return model

    def trace_step(
        self, model: nn.Module, *optimizers: Optimizer, with_residents: bool = False
    ) -> AbstractContextManager[Trace]:
        """`ampsweep.tracing.step.trace_step` on this device.

        `with_residents`: what is there and is not used by the step counts too, as it does for an allocator anyway.
        """
        resident = [*self._residents]
        if self.target.kind == "cpu":
            return trace_step(model, *optimizers, held=resident if with_residents else ())
        return trace_step(model, *optimizers, held=resident, counted=FakeTensor, scratch=scratch_bytes)

    def trace_program(self) -> AbstractContextManager[Trace]:
        """`ampsweep.tracing.step.trace_program` on this device."""
        if self.target.kind == "cpu":
            return trace_program(CPU)
        return trace_program(CPU, counted=FakeTensor, scratch=scratch_bytes)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=CPU)
