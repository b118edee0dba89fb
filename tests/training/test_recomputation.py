"""Activation checkpointing and channels_last: what they change, and findings where they change nothing."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from assembled import assemble, trained
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.analysis.contradictions import contradictions
from ampsweep.analysis.run_findings import without_effect
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice
from ampsweep.record.sections import ModeProof


class Blocks(nn.Module):
    """Two blocks on images of digits, recomputed by a `kind` of checkpoint; "idle" recomputes nothing."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.head, self.kind, self.is_enabled = nn.Linear(64, 32), nn.Linear(32, 10), kind, False
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(2))

    def gradient_checkpointing_enable(self):
        self.is_enabled = self.kind != "idle"

    def forward(self, x):
        x = self.first(x.flatten(1))
        for block in self.blocks:
            is_recomputed = self.is_enabled and torch.is_grad_enabled()
            x = checkpoint(block, x, use_reentrant=self.kind == "reentrant") if is_recomputed else block(x)
        return self.head(x)


class TwoConvolutions(nn.Module):
    """Convolutions on images of digits, between which the images may be put back as they were."""

    def __init__(self, puts_back=False):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head, self.puts_back = nn.Linear(8, 10), puts_back

    def forward(self, x):
        x = self.first(x).relu()
        return self.head(self.second(x.contiguous() if self.puts_back else x).mean((2, 3)))


def llama():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    return transformers.LlamaForCausalLM(config)


def custom(model, *more):
    return ("model=custom", f"model._target_={__name__}.{model}", "data=digits", "data.batch_size=16", *more)


REENTRANT, NOT_REENTRANT, IDLE = (custom("Blocks", f"+model.kind={kind}") for kind in ("reentrant", "not", "idle"))
LLAMA = (
    *custom("llama", "data=synthetic_tokens", "data.vocab_size=256", "data.seq_len=16", "data.num_batches=4"),
    *("task=model_loss", "task.input_argument=input_ids", "task.target_argument=labels", "task.targets=inputs"),
)
GPT = ("model=gpt_tiny", "data=synthetic_tokens", "data.seq_len=32", "data.vocab_size=64")
CHECKPOINTED, CHANNELS_LAST = "trainer.activation_checkpointing=true", "trainer.channels_last=true"


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        (GPT, "amp_bf16"),
        (REENTRANT, "amp_bf16"),
        (NOT_REENTRANT, "fp32"),
        pytest.param(LLAMA, "amp_bf16", marks=pytest.mark.nightly),
    ],
    ids=["gpt", "reentrant", "not reentrant", "llama"],
)
def test_a_block_is_recomputed_in_the_dtype_of_the_forward_pass(model, mode):
    overrides = (*model, f"precision={mode}", "trainer.steps=4")
    trainings = trained(*overrides), trained(*overrides, CHECKPOINTED)
    plain, checkpointed = (training.instruments for training in trainings)
    proof, memory, dtype = checkpointed.proof(), checkpointed.memory(), "float32" if mode == "fp32" else "bfloat16"
    assert plain.proof().num_repeated_operators == 0 < proof.num_repeated_operators
    assert 0 < proof.recomputed_flops[dtype] < proof.flops[dtype]
    assert contradictions(trainings[1].config.precision, proof) == []
    assert memory.end_of_forward["activations"] < plain.memory().end_of_forward["activations"]
    for training in trainings:
        step = FakeTraining(training.config, TargetDevice("cpu")).trace(training.config.data["batch_size"])
        assert training.instruments.memory().peak_bytes == step.peak().num_bytes, "as predicted"
    losses = [training.column("train/loss")[4] for training in trainings]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    if model is GPT:
        # Autocast's cache ends with the forward pass, and a checkpoint keeps no copy: backward casts anew. Left is the
        # copy of the last layer's weight, which no block has.
        assert memory.end_of_forward["autocast_weights"] == 2 * 64 * 64
        assert plain.memory().end_of_forward["autocast_weights"] > 20 * 64 * 64


def findings(trainer, proof):
    record = SimpleNamespace(config={"trainer": asdict(trainer)}, proof=proof, identity=SimpleNamespace(seed=0))
    return [finding.kind() for finding in without_effect(record)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (custom("TwoConvolutions", CHANNELS_LAST), []),
        (custom("TwoConvolutions", CHANNELS_LAST, "precision=amp_bf16"), []),
        (custom("TwoConvolutions", "+model.puts_back=true"), []),
        ((*IDLE, CHECKPOINTED), ["nothing_recomputed"]),
        (IDLE, []),
        ((*REENTRANT, CHECKPOINTED), []),
    ],
)
def test_a_setting_without_effect_is_a_finding(overrides, expected):
    training = trained(*overrides, "trainer.steps=4")
    assert findings(training.config.trainer, training.instruments.proof()) == expected
    uncounted = assemble(*overrides)
    assert findings(uncounted.config.trainer, ModeProof(flops={"float32": 1})) == []
