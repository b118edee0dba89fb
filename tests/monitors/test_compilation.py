"""Compilations during a training are noticed by private names of torch._dynamo, which only logs them."""

import pytest
import torch
from torch import nn

from ampsweep.monitors.compilation import CompilationWatch


@pytest.fixture(autouse=True)
def _reset_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_only_new_compilations_between_begin_and_end_are_noted():
    model = torch.compile(nn.Linear(4, 4), backend="eager", dynamic=False)
    model(torch.ones(2, 4))
    watch = CompilationWatch()
    watch.begin()
    model(torch.ones(2, 4))
    assert not watch.compiled
    model(torch.ones(3, 4))
    assert watch.compiled
    watch.end()
    idle = CompilationWatch()
    idle.begin()
    idle.end()
    idle.end()
    model(torch.ones(5, 4))
    assert not idle.compiled
    assert not idle.found()


class Printing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        print(end="")  # breaks the graph
        return self.last(x)


BREAK = f"line {Printing.forward.__code__.co_firstlineno + 2}"


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # raised by torch's own inspection of the code after the break
def test_graphs_breaks_and_recompilations_are_found():
    watch, model = CompilationWatch(), Printing()
    model.compile(backend="eager")
    watch.begin()
    model(torch.ones(2, 4))
    watch.settle(1, is_warmup=True)
    model(torch.ones(3, 4))
    watch.settle(2)
    with torch.no_grad():
        model(torch.ones(3, 4))
    watch.settle(None)  # an evaluation: compiled again, but in no step
    watch.end()
    found = watch.found()
    assert found.num_graphs == 6
    assert found.seconds > 0
    (only,) = found.graph_breaks
    assert only.reason == "Failed to trace builtin operator"
    assert only.place.endswith(f"test_compilation.py, {BREAK}")
    assert [(again.step, again.in_warmup) for again in found.recompilations] == [(2, False), (2, False)]
    assert found.recompilations[0].reason == "tensor 'x' size mismatch at index 0. expected 2, actual 3"
