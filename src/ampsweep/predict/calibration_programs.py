"""Small trainings whose operators are timed to calibrate a device."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ampsweep.models.gpt import GPT
from ampsweep.models.llama import Llama
from ampsweep.tasks.classification import Classification
from ampsweep.tasks.language_modeling import LanguageModeling
from ampsweep.tasks.regression import Regression

Program = tuple[nn.Module, Callable[[nn.Module, Any], Tensor], tuple[Tensor, Tensor]]
"""A model, its loss and a batch."""


def programs() -> Iterator[Program]:
    """The trainings that calibrate."""
    for words in ((2, 16, 32, 2, 64), (4, 64, 128, 4, 256), (8, 128, 192, 3, 1024), (2, 256, 384, 6, 8192)):
        yield from _words(*words)
    for sizes in ((2, 8, 4), (16, 32, 8), (4, 96, 16), (8, 48, 32), (8, 32, 64), (4, 8, 128), (8, 8, 256), (8, 4, 512)):
        yield from _images(*sizes)
    for sizes in ((8, 16, 32), (128, 64, 128), (32, 32, 512), (512, 512, 256), (256, 1024, 1024), (64, 384, 2048)):
        yield _dense(*sizes)


def checks() -> Iterator[Program]:
    """Trainings of other sizes, by which the calibration is judged."""
    yield from (*_words(3, 96, 256, 4, 3000), *_images(8, 40, 24), *_images(12, 12, 96), _dense(200, 300, 700))


def _words(batch: int, tokens: int, hidden: int, heads: int, vocabulary: int) -> Iterator[Program]:
    """Language models; on a CPU attention with dropout is made of operators."""
    ids = torch.randint(vocabulary, (batch, tokens))
    gpts = [GPT(vocabulary, tokens, 1, hidden, heads, dropout) for dropout in (0.0, 0.1)]
    for model in (*gpts, Llama(vocabulary, 1, hidden, heads, 1, 3 * hidden)):
        yield model, LanguageModeling().loss, (ids, ids)


def _images(batch: int, side: int, c: int) -> Iterator[Program]:
    """Convolutions with `c` channels, plain, strided, 1x1 and transposed, with batch norm, in both memory orders."""
    images, classes = torch.randn(batch, 3, side, side), torch.zeros(batch, dtype=torch.int64)
    for order in (torch.contiguous_format, torch.channels_last):
        model = nn.Sequential(
            *(nn.Conv2d(3, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(inplace=True)),
            *(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(inplace=True)),
            *(nn.Conv2d(c, 2 * c, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * c), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(2 * c, c, 1, bias=False), nn.ConvTranspose2d(c, c, 4, stride=2, padding=1), nn.Tanh()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ).to(memory_format=order)  # type: ignore[call-overload]
        yield model, Classification().loss, (images.to(memory_format=order), classes)


def _dense(rows: int, width: int, inner: int) -> Program:
    layers = nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, width)
    x = torch.randn(rows, width)
    return nn.Sequential(*layers, nn.Sigmoid()), Regression().loss, (x, x)
