"""The GPT is GPT-2."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.models.gpt import GPT


def tiny(**changes):
    sizes = {"vocab_size": 11, "seq_len": 8, "num_layers": 2, "hidden_size": 12, "num_heads": 3} | changes
    torch.manual_seed(0)
    return GPT(**sizes)


@pytest.mark.parametrize(
    ("sizes", "num_parameters"),
    [
        ((50257, 1024, 12, 768, 12), 124_439_808),
        ((50257, 1024, 24, 1024, 16), 354_823_168),
        ((50257, 1024, 36, 1280, 20), 774_030_080),
        ((50257, 1024, 48, 1600, 25), 1_557_611_200),
    ],
    ids=["small", "medium", "large", "xl"],
)
def test_gpt2_sizes_have_gpt2s_parameter_counts(sizes, num_parameters):
    with torch.device("meta"):
        model = GPT(*sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


def test_logits_have_the_vocabulary_at_each_position():
    assert tiny()(torch.randint(11, (3, 5))).shape == (3, 5, 11)


def test_a_token_does_not_see_its_future():
    model = tiny()
    tokens = torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_it_computes_what_hugging_faces_gpt2_computes():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=3, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    theirs, ours = transformers.GPT2LMHeadModel(config).eval(), tiny()
    with torch.no_grad():
        for (name, mine), other in zip(ours.named_parameters(), theirs.transformer.parameters(), strict=True):
            other.normal_(std=0.3)
            # Hugging Face keeps GPT-2's Conv1D, whose weight is that of a transposed linear layer.
            transposed = mine.dim() == 2 and "embedding" not in name
            mine.copy_(other.T if transposed else other)
    tokens = torch.randint(11, (2, 8))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


def test_the_output_layer_is_the_token_embedding():
    model = tiny()
    hidden = []
    model.norm.register_forward_hook(lambda module, inputs, output: hidden.append(output))
    logits = model(torch.randint(11, (1, 8)))
    torch.testing.assert_close(logits, hidden[0] @ model.token_embedding.weight.T)


def test_initial_weights_have_gpt2s_spread():
    torch.manual_seed(0)
    model = GPT(vocab_size=500, seq_len=64, num_layers=3, hidden_size=192, num_heads=3)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif "norm" in name:
            assert (parameter == 1).all()
        else:
            std = 0.02 / math.sqrt(6) if name.endswith("projection.weight") else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name


def test_an_untrained_model_knows_nothing():
    tokens = torch.randint(11, (4, 8))
    loss = F.cross_entropy(tiny()(tokens).flatten(0, 1), torch.randint(11, (32,)))
    assert loss.item() == pytest.approx(math.log(11), rel=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_trains_under_autocast(dtype):
    model = tiny()
    with torch.autocast("cpu", dtype=dtype):
        logits = model(torch.randint(11, (2, 8)))
    assert logits.dtype is dtype
    logits.float().square().mean().backward()
    assert all(parameter.grad.dtype is torch.float32 for parameter in model.parameters())


def test_it_trains_in_pure_bfloat16():
    model = tiny().to(torch.bfloat16)
    logits = model(torch.randint(11, (2, 8)))
    logits.mean().backward()
    assert logits.dtype is torch.bfloat16
    assert all(parameter.grad.dtype is torch.bfloat16 for parameter in model.parameters())


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_it_compiles_without_a_graph_break(gradient_checkpointing):
    model = tiny()
    if gradient_checkpointing:
        model.gradient_checkpointing_enable()
    tokens = torch.randint(11, (2, 8))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    compiled(tokens).mean().backward()


def test_dropout_acts_in_training_alone():
    model, tokens = tiny(dropout=0.5), torch.randint(11, (2, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_a_sequence_beyond_the_positions_is_refused():
    with pytest.raises(ValueError, match=r"holds 8 positions .* got 9 tokens"):
        tiny()(torch.zeros(1, 9, dtype=torch.int64))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"seq_len": 0}, "seq_len must be at least 1, got 0"),
        ({"num_layers": -1}, "num_layers must be at least 1, got -1"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"num_heads": 5}, "hidden_size must be a multiple of num_heads, got 12 and 5"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    ],
)
def test_impossible_sizes_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        tiny(**changes)


def test_it_is_made_of_modules_that_a_census_knows():
    assert {type(module) for module in tiny().modules() if not list(module.children())} == {
        nn.Embedding,
        nn.Linear,
        nn.LayerNorm,
        nn.Dropout,
    }
