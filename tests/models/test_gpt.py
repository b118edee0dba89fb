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


def test_gpt2_sizes_have_gpt2s_parameter_counts():
    for sizes, num_parameters in (((12, 768, 12), 124_439_808), ((48, 1600, 25), 1_557_611_200)):
        with torch.device("meta"):
            model = GPT(50257, 1024, *sizes)
        assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    leaves = {type(module) for module in model.modules() if not list(module.children())}
    assert leaves == {nn.Embedding, nn.Linear, nn.LayerNorm, nn.Dropout}, "modules that reports can name"


def test_a_token_does_not_see_its_future():
    model, tokens = tiny(), torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 8, 11)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_it_computes_what_hugging_faces_gpt2_computes():
    transformers = pytest.importorskip("transformers")
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=3, **dropout)
    theirs, ours = transformers.GPT2LMHeadModel(config).eval(), tiny()
    with torch.no_grad():
        for (name, mine), other in zip(ours.named_parameters(), theirs.transformer.parameters(), strict=True):
            other.normal_(std=0.3)
            # Hugging Face keeps GPT-2's Conv1D, whose weight is that of a transposed linear layer.
            mine.copy_(other.T if mine.dim() == 2 and "embedding" not in name else other)
    tokens = torch.randint(11, (2, 8))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


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
    tokens, targets = torch.randint(500, (4, 64)), torch.randint(500, (256,))
    assert F.cross_entropy(model(tokens).flatten(0, 1), targets).item() == pytest.approx(math.log(500), rel=0.05)


def test_it_compiles_without_a_graph_break():
    model, tokens = tiny(), torch.randint(11, (2, 8))
    model.gradient_checkpointing_enable()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    compiled(tokens).mean().backward()


def test_dropout_acts_in_training_alone():
    model, tokens = tiny(dropout=0.5), torch.randint(11, (2, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_impossible_sizes_are_refused():
    sizes = ("vocab_size", "seq_len", "num_layers", "hidden_size", "num_heads")
    for changes, sentence in (
        *(({name: 0}, f"{name} must be at least 1, got 0") for name in sizes),
        ({"num_heads": 5}, "hidden_size must be a multiple of num_heads, got 12 and 5"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({}, r"holds 8 positions .* got 9 tokens"),
    ):
        with pytest.raises(ValueError, match=sentence):
            tiny(**changes)(torch.zeros(1, 9, dtype=torch.int64))
