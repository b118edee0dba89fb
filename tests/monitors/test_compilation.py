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
