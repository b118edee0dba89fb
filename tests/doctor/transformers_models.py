"""Models of Hugging Face's with random weights, as they are known to go well or wrong in low precision."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

ON_TEXT = (
    "task=model_loss",
    "task.input_argument=input_ids",
    "task.target_argument=labels",
    "task.targets=inputs",
    "data=text",
    "data.batch_size=4",
    "model=custom",
)


class T5(T5ForConditionalGeneration):
    """An encoder and a decoder, of which a gain makes the last layers of their feed-forward parts large.

    The published T5 has such ones: in float16 they overflow, and the library keeps the modules named `wo` in float32.
    """

    def __init__(self, gain=1.0):
        super().__init__(
            T5Config(
                vocab_size=256,
                d_model=64,
                d_kv=16,
                d_ff=128,
                num_layers=2,
                num_heads=4,
                decoder_start_token_id=0,
                pad_token_id=0,
            )
        )
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("DenseReluDense.wo.weight"):
                    parameter.mul_(gain)


class Llama(LlamaForCausalLM):
    """A norm that computes in float32, whose input a residual stream takes, too."""

    def __init__(self):
        super().__init__(
            LlamaConfig(
                vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
            )
        )
