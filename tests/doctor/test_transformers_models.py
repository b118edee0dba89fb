"""The doctor on models of Hugging Face's: nothing is found where nothing is wrong, and T5's known fault where it is."""

import pytest
from patients import patient_of
from transformers_models import ON_TEXT

from ampsweep.doctor.loss.examine import examine_loss
from ampsweep.doctor.side_by_side.examine import examine_numerics


def patient(model, mode, *more):
    return patient_of(*ON_TEXT, f"model._target_=transformers_models.{model}", f"precision={mode}", *more)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["amp_fp16", "amp_bf16", "pure_bf16"])
@pytest.mark.parametrize("model", ["T5", "Llama"])
def test_nothing_is_found_in_a_healthy_model(model, mode):
    """They mask with their dtype's lowest number, drop out, and do other things when values change a little."""
    one = patient(model, mode)
    assert examine_loss(one) == []
    assert examine_numerics(one) == []


@pytest.mark.slow
def test_the_layers_that_t5_keeps_in_float32_are_found():
    (found,) = examine_loss(patient("T5", "amp_fp16", "+model.gain=30000"))
    parts = ["encoder.block.0.layer.1", "encoder.block.1.layer.1", "decoder.block.0.layer.2", "decoder.block.1.layer.2"]
    assert found.kind() == "value_overflow"
    assert found.modules == [f"{part}.DenseReluDense.wo" for part in parts]
    assert found.proof.mends
