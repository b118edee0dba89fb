"""The headroom predicted from float32 steps is what float16 then has."""

import sys
from pathlib import Path

import pytest
import torch
from assembled import CPU
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from headroom import disagreement, judged
from headroom_models import CASES

from ampsweep.doctor.side_by_side.examine import note_lowered_layers
from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.monitors.observation_schedule import ObservationSchedule
from ampsweep.precision import Precision
from ampsweep.records.numerics import INPUT_LAYER

VERDICTS = {
    "mlp, loss x 1e-11": "works_with_another_scale",
    "mlp, inputs x 1e5, first weights / 1e5": "does_not_work",
    "mlp": "works",
    "two losses, one x 1e-12": "does_not_work",
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in VERDICTS else pytest.mark.nightly) for case in CASES],
    ids=lambda case: case.name,
)
def test_float16_does_as_its_headroom_predicts(case):
    predicted, full = judged(case)
    assert predicted.verdict == VERDICTS.get(case.name, predicted.verdict)
    assert not disagreement(case, predicted, full)


class Stream(nn.Module):
    """A stream in float32 that only a norm takes; the norm's result and the head are cast.

    Returns its loss beside its values, as Hugging Face's models do.
    """

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(8, 4), nn.LayerNorm(4), nn.Linear(4, 2)
        self.gain = nn.Identity()

    def forward(self, tokens, features):
        values = self.head(self.norm(self.gain(self.embed(tokens) * 2))) + self.head(features)
        return {"loss": values.square().mean(), "logits": values}


TOKENS, FEATURES = torch.tensor([1, 2]), torch.full((2, 4), 3e3)


def test_layers_that_float16_does_not_touch_are_known():
    model = Stream()
    with note_lowered_layers(model, torch.float16) as outside, torch.autocast("cpu", torch.float16):
        model(TOKENS, FEATURES)
    assert outside == {"embed", "gain", "embed.weight", "norm.weight", "norm.bias"}
    with note_lowered_layers(model, torch.float16) as outside:
        model(TOKENS, FEATURES)
    assert outside >= {"embed", "head", "head.weight", INPUT_LAYER, ""}, "without autocast every layer is outside"


def test_inputs_are_activations_and_a_loss_is_none():
    model = Stream()
    watch = NumericsWatch(model, Precision("fp32", CPU), ObservationSchedule(1, 1))
    with watch.look():
        model(TOKENS, features=FEATURES)["loss"].backward()
    watch.read(1)
    magnitudes = watch.numerics().magnitudes
    (row,) = [row for row in magnitudes if row.layer == INPUT_LAYER]
    assert (row.kind, row.max_abs, row.num_elements) == ("activation", 3e3, 8)
    found = [(row.kind, row.num_elements) for row in magnitudes if row.layer == ""]
    assert found == [("activation", 4), ("activation_gradient", 4)], "the loss is not one of them"
