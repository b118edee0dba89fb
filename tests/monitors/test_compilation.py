"""Compilations during a training are noticed by private names of torch._dynamo, which only logs them."""

import pytest
import torch
from torch import nn

from ampsweep.monitors.compilation import CompilationWatch


class Printing(nn.Linear):
    def forward(self, x):
        x = x + 1
        print(end="")  # breaks the graph
        return super().forward(x)


BREAK = f"test_compilation.py, line {Printing.forward.__code__.co_firstlineno + 2}"


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's own inspection of the code after the break
def test_graphs_breaks_and_recompilations_are_found(request):
    torch.compiler.reset()
    request.addfinalizer(torch.compiler.reset)
    watch, idle, model = CompilationWatch(), CompilationWatch(), Printing(4, 4)
    model.compile(backend="eager", dynamic=False)
    model(torch.ones(1, 4))
    idle.begin()
    for _ in range(2):
        idle.end()
    watch.begin()
    model(torch.ones(1, 4))
    assert not watch.compiled
    model(torch.ones(2, 4))
    assert watch.compiled
    watch.settle(1, is_warmup=True)
    model(torch.ones(3, 4))
    watch.settle(2)
    with torch.no_grad():
        model(torch.ones(3, 4))
    watch.settle(None)  # an evaluation: compiled again, but in no step
    watch.end()
    assert not idle.compiled
    assert not idle.found()
    found = watch.found()
    assert found.num_graphs == 6
    assert found.seconds > 0
    (only,) = found.graph_breaks
    assert only.reason == "Failed to trace builtin operator"
    assert only.place.endswith(BREAK)
    again = found.recompilations
    assert [(each.step, each.in_warmup) for each in again] == [(1, True)] * 2 + [(2, False)] * 2
    assert again[0].reason == "tensor 'x' size mismatch at index 0. expected 1, actual 2"
