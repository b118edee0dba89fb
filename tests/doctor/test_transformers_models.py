"""The doctor on models of Hugging Face's: nothing is found where nothing is wrong, and T5's known fault where it is."""

import pytest
import torch
from planted import examined_of
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from ampsweep.doctor.loss.examine import examine_loss
from ampsweep.doctor.side_by_side.examine import examine_numerics

pytestmark = pytest.mark.slow
TASK = ("task=model_loss", "task.input_argument=input_ids", "task.target_argument=labels", "task.targets=inputs")


class T5(T5ForConditionalGeneration):
    """With a gain its `wo` are as large as the published T5's, which overflow in float16: the library keeps them in
    float32."""

    def __init__(self, gain=1.0):
        sizes = {"vocab_size": 256, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
        super().__init__(T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0))
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("DenseReluDense.wo.weight"):
                    parameter.mul_(gain)


class Llama(LlamaForCausalLM):
    """A norm that computes in float32, whose input a residual stream takes, too."""

    def __init__(self):
        sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128}
        super().__init__(LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=4))


def examined(model, mode, *more):
    target = f"model._target_=test_transformers_models.{model}"
    return examined_of(*TASK, "data=text", "data.batch_size=4", "model=custom", target, f"precision={mode}", *more)


@pytest.mark.parametrize("mode", ["amp_bf16", pytest.param("amp_fp16", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("model", ["Llama", pytest.param("T5", marks=pytest.mark.nightly)])
def test_nothing_is_found_in_a_healthy_model(model, mode):
    training = examined(model, mode)
    assert [*examine_loss(training)] == []
    assert [*examine_numerics(training)] == []


@pytest.mark.nightly
def test_the_layers_that_t5_keeps_in_float32_are_found():
    (found,) = examine_loss(examined("T5", "amp_fp16", "+model.gain=30000"))
    ends = [(f"{half}.block.{block}", layer) for half, layer in (("encoder", 1), ("decoder", 2)) for block in (0, 1)]
    assert found.kind() == "value_overflow"
    assert found.modules == [f"{block}.layer.{layer}.DenseReluDense.wo" for block, layer in ends]
    assert found.proof.mends
