"""A compilation in the middle of a training is noticed; torch tells of it under a private name alone."""

import pytest
import torch
from torch import nn

from ampsweep.monitors.compilation import CompilationWatch


@pytest.fixture
def compiled():
    torch.compiler.reset()
    model = torch.compile(nn.Linear(4, 4), backend="eager", dynamic=False)
    model(torch.ones(2, 4))
    yield model
    torch.compiler.reset()


def test_only_what_is_compiled_anew_is_noted(compiled):
    watch = CompilationWatch()
    watch.begin()
    compiled(torch.ones(2, 4))
    assert not watch.compiled
    compiled(torch.ones(3, 4))
    assert watch.compiled
    watch.end()


def test_nothing_is_noted_after_the_end(compiled):
    watch = CompilationWatch()
    watch.begin()
    watch.end()
    watch.end()
    compiled(torch.ones(3, 4))
    assert not watch.compiled


class Printing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        print(end="")  # breaks the graph
        return self.last(x)


BREAK = f"line {Printing.forward.__code__.co_firstlineno + 2}"


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's own look at what comes after the break
def test_graphs_breaks_and_repetitions_are_told():
    torch.compiler.reset()
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
    torch.compiler.reset()
    assert found.num_graphs == 6
    assert found.seconds > 0
    (only,) = found.graph_breaks
    assert only.reason == "Failed to trace builtin operator"
    assert only.place.endswith(f"test_compilation.py, {BREAK}")
    assert [(one.step, one.in_warmup) for one in found.recompilations] == [(2, False), (2, False)]
    assert found.recompilations[0].reason == "tensor 'x' size mismatch at index 0. expected 2, actual 3"


def test_where_nothing_is_compiled_there_is_nothing_to_tell():
    watch = CompilationWatch()
    watch.begin()
    watch.end()
    assert not watch.found()
