"""The headroom told from float32 steps is what float16 then has; all cases: `tests/benchmarks/headroom.py`."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from headroom import agrees, in_float16, judged
from headroom_models import CASES

from ampsweep.doctor.side_by_side.examine import note_lowered_layers
from ampsweep.monitors.looks import Looks
from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.precision import Precision
from ampsweep.record.numerics import INPUT_LAYER

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("mlp", "works"),
        ("mlp, loss x 1e6", "works_with_another_scale"),
        ("mlp, loss x 1e-11", "works_with_another_scale"),
        ("mlp, inputs x 1e5, first weights / 1e5", "does_not_work"),
        ("mlp, weights x 300, norms", "works"),
        ("two losses, one x 1e-12", "does_not_work"),
    ],
)
def test_float16_does_as_its_headroom_tells(name, verdict):
    case = BY_NAME[name]
    told, full = judged(case)
    assert told.verdict == verdict
    scales = [told.best_scale] if told.best_scale > told.scale else []
    did = in_float16(case, full, scales)
    assert agrees(told, did), (told.verdict, told.max_scale, did)


class Stream(nn.Module):
    """A stream in float32 that only a norm takes; the norm's result and the head are cast."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(8, 4), nn.LayerNorm(4), nn.Linear(4, 2)
        self.gain = nn.Identity()

    def forward(self, tokens, features):
        return self.head(self.norm(self.gain(self.embed(tokens) * 2))) + self.head(features)


def test_layers_that_float16_has_nothing_to_do_with_are_known():
    model = Stream()
    with note_lowered_layers(model, torch.float16) as noted, torch.autocast("cpu", torch.float16):
        model(torch.tensor([1, 2]), torch.ones(2, 4))
    assert noted.outside == {"embed", "gain", "embed.weight", "norm.weight", "norm.bias"}


def test_without_autocast_every_layer_is_outside():
    model = Stream()
    with note_lowered_layers(model, torch.float16) as noted:
        model(torch.tensor([1, 2]), torch.ones(2, 4))
    assert noted.outside >= {"embed", "head", "head.weight", INPUT_LAYER, ""}


def test_what_the_model_is_called_with_is_looked_at():
    model = Stream()
    watch = NumericsWatch(model, Precision("fp32", "cpu"), Looks(1, 1))
    with watch.look():
        model(torch.tensor([1, 2]), features=torch.full((2, 4), 3e5)).sum().backward()
    watch.read(1)
    (one,) = [one for one in watch.numerics().magnitudes if one.layer == INPUT_LAYER]
    assert (one.kind, one.max_abs, one.num_elements) == ("activation", 3e5, 8)


class WithLoss(nn.Linear):
    """Returns its loss beside its values, as Hugging Face's models do."""

    def forward(self, features):
        values = super().forward(features)
        return {"loss": values.square().mean(), "logits": values}


def test_a_loss_is_no_activation_of_the_model():
    model = WithLoss(4, 2)
    watch = NumericsWatch(model, Precision("fp32", "cpu"), Looks(1, 1))
    with watch.look():
        model(torch.ones(3, 4))["loss"].backward()
    watch.read(1)
    of_model = {one.kind: one for one in watch.numerics().magnitudes if one.layer == ""}
    assert {kind: one.num_elements for kind, one in of_model.items()} == {"activation": 6, "activation_gradient": 6}
    assert of_model["activation_gradient"].max_abs < 1, "that of a loss is 1"
