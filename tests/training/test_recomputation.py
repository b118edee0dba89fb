"""Activation checkpointing under autocast: recomputed in the same dtype, with fewer activations, as predicted."""

import pytest
from assembled import assemble

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.compose import compose_one
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice

MODES = ("fp32", "amp_bf16")
ON_DIGITS = ("model=custom", "data=digits", "data.batch_size=16", "task=classification")
ON_TEXT = (
    *("model=custom", "data=synthetic_tokens", "data.vocab_size=256", "data.seq_len=16", "data.batch_size=4"),
    *("task=model_loss", "task.input_argument=input_ids", "task.target_argument=labels", "task.targets=inputs"),
    "data.num_batches=4",
)
MODELS = {
    "gpt_tiny": ("model=gpt_tiny", "data=synthetic_tokens", "data.seq_len=32", "data.vocab_size=64"),
    "Reentrant": (*ON_DIGITS, "model._target_=checkpointed_models.Reentrant"),
    "NotReentrant": (*ON_DIGITS, "model._target_=checkpointed_models.NotReentrant"),
    "Llama": (*ON_TEXT, "model._target_=checkpointed_models.Llama"),
}
CHECKPOINTED = "trainer.activation_checkpointing=true"


def trained(*overrides):
    """The proof and memory of a training, and the loss of its last step."""
    training = assemble(*overrides, "trainer.steps=4")
    assert training.train().status == "completed"
    instruments = training.trainer.instruments
    return instruments.proof(), instruments.memory(), training.column("train/loss")[4]


def predicted(*overrides):
    config = compose_one(["device=cpu", "tracking=disabled", *overrides])
    return FakeTraining(config, TargetDevice("cpu")).trace(config.data["batch_size"]).peak().num_bytes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", MODELS)
def test_what_is_recomputed_is_computed_as_in_the_forward_pass(model, mode):
    overrides = (*MODELS[model], f"precision={mode}")
    plain, plain_memory, plain_loss = trained(*overrides)
    proof, memory, loss = trained(*overrides, CHECKPOINTED)
    dtype = "float32" if mode == "fp32" else "bfloat16"
    assert plain.num_repeated_operators == 0
    assert proof.num_repeated_operators > 0
    assert 0 < proof.recomputed_flops[dtype] < proof.flops[dtype]
    assert contradictions(compose_one([f"precision={mode}"]).precision, proof) == []
    assert memory.end_of_forward["activations"] < plain_memory.end_of_forward["activations"]
    assert memory.peak_bytes == predicted(*overrides, CHECKPOINTED)
    assert plain_memory.peak_bytes == predicted(*overrides)
    assert loss == pytest.approx(plain_loss, rel=1e-2)


def test_copies_of_weights_end_with_a_pass_that_is_recomputed():
    """Autocast's cache ends with the forward pass, and a checkpoint keeps no copy: backward casts anew."""
    plain, checkpointed = (
        trained(*MODELS["gpt_tiny"], "precision=amp_bf16", *more)[1] for more in ((), (CHECKPOINTED,))
    )
    head = 2 * 64 * 64  # the copy of the last layer's weight, which no block has
    assert checkpointed.end_of_forward["autocast_weights"] == head
    assert plain.end_of_forward["autocast_weights"] > 10 * head
