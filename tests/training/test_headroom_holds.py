"""The headroom predicted from float32 steps is what float16 then has; all cases: `tests/benchmarks/headroom.py`."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from headroom import agrees, in_float16, judged
from headroom_models import CASES

from ampsweep.doctor.side_by_side.examine import note_lowered_layers
from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.monitors.observation_schedule import ObservationSchedule
from ampsweep.precision import Precision
from ampsweep.record.numerics import INPUT_LAYER


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("mlp, loss x 1e-11", "works_with_another_scale"),
        ("mlp, inputs x 1e5, first weights / 1e5", "does_not_work"),
        ("mlp", "works"),
        ("two losses, one x 1e-12", "does_not_work"),
    ],
)
def test_float16_does_as_its_headroom_predicts(name, verdict):
    (case,) = (case for case in CASES if case.name == name)
    predicted, full = judged(case)
    assert predicted.verdict == verdict
    scales = [predicted.best_scale] if predicted.best_scale > predicted.scale else []
    outcome = in_float16(case, full, scales)
    assert agrees(predicted, outcome), (predicted.verdict, predicted.max_scale, outcome)


class Stream(nn.Module):
    """A stream in float32 that only a norm takes; the norm's result and the head are cast."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(8, 4), nn.LayerNorm(4), nn.Linear(4, 2)
        self.gain = nn.Identity()

    def forward(self, tokens, features):
        return self.head(self.norm(self.gain(self.embed(tokens) * 2))) + self.head(features)


def test_layers_that_float16_does_not_touch_are_known():
    model = Stream()
    with note_lowered_layers(model, torch.float16) as noted, torch.autocast("cpu", torch.float16):
        model(torch.tensor([1, 2]), torch.ones(2, 4))
    assert noted.outside == {"embed", "gain", "embed.weight", "norm.weight", "norm.bias"}
    with note_lowered_layers(model, torch.float16) as noted:
        model(torch.tensor([1, 2]), torch.ones(2, 4))
    assert noted.outside >= {"embed", "head", "head.weight", INPUT_LAYER, ""}, "without autocast every layer is outside"


class WithLoss(nn.Linear):
    """Returns its loss beside its values, as Hugging Face's models do."""

    def forward(self, features):
        values = super().forward(features)
        return {"loss": values.square().mean(), "logits": values}


def watched(model, run):
    watch = NumericsWatch(model, Precision("fp32", "cpu"), ObservationSchedule(1, 1))
    with watch.look():
        run(model).backward()
    watch.read(1)
    return watch.numerics().magnitudes


def test_inputs_are_activations_and_a_loss_is_none():
    features = torch.full((2, 4), 3e5)
    magnitudes = watched(Stream(), lambda model: model(torch.tensor([1, 2]), features=features).sum())
    (row,) = [row for row in magnitudes if row.layer == INPUT_LAYER]
    assert (row.kind, row.max_abs, row.num_elements) == ("activation", 3e5, 8)
    magnitudes = watched(WithLoss(4, 2), lambda model: model(torch.ones(3, 4))["loss"])
    rows = {row.kind: row for row in magnitudes if row.layer == ""}
    assert {kind: row.num_elements for kind, row in rows.items()} == {"activation": 6, "activation_gradient": 6}
    assert rows["activation_gradient"].max_abs < 1, "that of a loss is 1"
