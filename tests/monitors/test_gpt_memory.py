"""The bytes of a GPT's training step are those that its sizes give, layer by layer."""

import pytest
import torch

from ampsweep.models.gpt import GPT
from ampsweep.observe.step import trace_step
from ampsweep.tasks.language_modeling import LanguageModeling

LAYERS, WIDTH, HEADS, VOCABULARY = 3, 32, 4, 96
BATCH, LENGTH, MICRO_BATCHES = 4, 16, 2
TOKENS = BATCH * LENGTH

BLOCK_WEIGHTS = 12 * WIDTH * WIDTH  # 3 (queries, keys, values) + 1 (projection) + 4 + 4 (feed-forward)
BLOCK_VECTORS = 9 * WIDTH + 4 * WIDTH  # biases of the same (3 + 1 + 4 + 1), weights and biases of two norms
NUM_PARAMETERS = (VOCABULARY + LENGTH) * WIDTH + LAYERS * (BLOCK_WEIGHTS + BLOCK_VECTORS) + 2 * WIDTH
NUM_TENSORS = 2 + LAYERS * (8 + 4) + 2

STATISTICS = 4 * TOKENS * (LAYERS * 2 * 2 + 2)  # mean and inverse deviation of each norm
SOFTMAX = 4 * LAYERS * BATCH * HEADS * LENGTH  # its denominators, which attention keeps instead of the scores
LOG_PROBABILITIES = 4 * TOKENS * VOCABULARY


def traced(dtype=None, checkpointing=False):
    """The second step of a GPT with AdamW, with gradients accumulated."""
    torch.manual_seed(0)
    model = GPT(vocab_size=VOCABULARY, seq_len=LENGTH, num_layers=LAYERS, hidden_size=WIDTH, num_heads=HEADS)
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(VOCABULARY, (MICRO_BATCHES, BATCH, LENGTH + 1))
    for _ in range(2):
        with trace_step(model, optimizer) as trace:
            for batch in tokens:
                with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = LanguageModeling().loss(model, (batch[:, :-1], batch[:, 1:]))
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del loss
    return trace.result


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_every_byte_of_a_step_follows_from_the_sizes(dtype):
    step = traced(dtype)
    for moment in (step.peak, step.end_of_forward):
        assert moment["parameters"] == moment["gradients"] == 4 * NUM_PARAMETERS
        assert moment["optimizer_state"] == 2 * 4 * NUM_PARAMETERS + 4 * NUM_TENSORS
    assert set(step.kept.values()) == {0}, "nothing outlives the step"
    stream = 1 + 2 * LAYERS  # after the embedding, each attention and each feed-forward
    in_blocks = LAYERS * (1 + 3 + 1 + 1 + 4 + 4)  # norm, qkv, attention, norm, and both sides of the GELU
    widths = 4 * (stream + in_blocks + 1) if dtype is None else 4 * stream + 2 * in_blocks + 2
    activations = TOKENS * WIDTH * widths + STATISTICS + SOFTMAX + LOG_PROBABILITIES
    assert step.end_of_forward["activations"] == pytest.approx(activations, abs=64)
    copies = 0 if dtype is None else 2 * (LAYERS * BLOCK_WEIGHTS + VOCABULARY * WIDTH)
    assert step.end_of_forward["autocast_weights"] == copies


def test_checkpointing_saves_activations_and_adds_no_model_flops():
    weights = LAYERS * BLOCK_WEIGHTS + VOCABULARY * WIDTH
    attention = 2 * LENGTH * WIDTH * LAYERS  # of a token with all others
    expected = MICRO_BATCHES * TOKENS * (3 * 2 * weights + (2 + 4) * attention)
    scores_again = MICRO_BATCHES * TOKENS * attention
    plain, checkpointed = traced(), traced(checkpointing=True)
    inputs_of_blocks = 4 * TOKENS * (WIDTH * (1 + LAYERS + 1) + 2) + LOG_PROBABILITIES
    assert checkpointed.end_of_forward["activations"] == pytest.approx(inputs_of_blocks, abs=64)
    assert plain.model_flops == checkpointed.model_flops == {"float32": expected}
    assert plain.recomputed_flops == {"float32": scores_again}
    assert plain.flops == {"float32": expected + scores_again}
    assert checkpointed.recomputed_flops["float32"] == checkpointed.flops["float32"] - expected > scores_again
