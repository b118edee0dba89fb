"""Predictions of models whose parameters have no gradients, changed ones, or complex ones: to the byte."""

import pytest
from steps import measured, predicted


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "pure_bf16"])
@pytest.mark.parametrize("model", ["Unused", "Hooked", "Waves"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_such_a_step_to_the_byte(model, mode, optimizer):
    own = ("model=custom", f"model._target_=partly_trained_models.{model}")
    momentum = ("optimizer.momentum=0.9",) if optimizer == "sgd" else ()
    overrides = (*own, "data=digits", "data.batch_size=6", f"optimizer={optimizer}", *momentum, f"precision={mode}")

    truth, timeline = measured(*overrides), predicted(*overrides)

    assert timeline.peak().categories == truth.peak
    assert timeline.at(timeline.end_of_forward) == truth.end_of_forward
