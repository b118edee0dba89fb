"""Predictions of models that look at values which the host knows: to the byte; at others: refused."""

import pytest
from steps import measured, predicted

from ampsweep.predict.fake_kernels import UntraceableError

TOKENS = ("data=text", "data.seq_len=16", "data.batch_size=4")
LOOKING = ("model=custom", "model._target_=looking_models.Looking", *TOKENS)
LLAMA = (
    *("model=custom", "model._target_=transformers.LlamaForCausalLM", "task=model_loss"),
    *("task.input_argument=input_ids", "task.target_argument=labels", "task.targets=inputs", *TOKENS),
    "+model.config._target_=transformers.LlamaConfig",
    *(f"+model.config.{size}=16" for size in ("hidden_size", "intermediate_size", "max_position_embeddings")),
    *("+model.config.vocab_size=256", "+model.config.num_hidden_layers=1", "+model.config.use_cache=false"),
    *("+model.config.num_attention_heads=2", "+model.config.num_key_value_heads=1"),
)


def same(*overrides):
    truth, timeline = measured(*overrides), predicted(*overrides)
    return timeline.peak().categories == truth.peak and timeline.at(timeline.end_of_forward) == truth.end_of_forward


@pytest.mark.parametrize("looks_at", ["mask", "changed_mask", "positions", "places"])
def test_what_the_host_knows_is_looked_at(looks_at):
    assert same(*LOOKING, f"+model.looks_at={looks_at}", "precision=amp_bf16")


@pytest.mark.parametrize("looks_at", ["drawn", "overwritten"])
def test_what_it_does_not_know_is_refused(looks_at):
    with pytest.raises(UntraceableError, match="depends on values of tensors"):
        predicted(*LOOKING, f"+model.looks_at={looks_at}")


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16"])
def test_hugging_face_models_make_no_mask_that_they_do_not_need(mode):
    assert same(*LLAMA, f"precision={mode}")
