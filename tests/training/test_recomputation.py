"""Activation checkpointing and trainer.compile: what they change, and a finding where nothing changes."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from assembled import MLP, assemble, own, trained
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.analysis.contradictions import contradictions
from ampsweep.analysis.run_findings import findings_of_step
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice
from ampsweep.records.sections import Compilation, ModeProof


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


REENTRANT, OTHER, IDLE = (own(__name__, "Blocks", f"+model.kind={kind}") for kind in ("reentrant", "other", "idle"))
GPT = ("model=gpt_tiny", "data=synthetic_tokens", "data.seq_len=32", "data.vocab_size=64")
CHECKPOINTED = "trainer.activation_checkpointing=true"
LAYERS = "intermediate_size:64,num_hidden_layers:2,num_attention_heads:2"
LLAMA = (
    *("model=custom", "model._target_=transformers.LlamaForCausalLM", "data=synthetic_tokens", "data.vocab_size=256"),
    f"+model.config={{_target_:transformers.LlamaConfig,vocab_size:256,hidden_size:32,{LAYERS}}}",
    *("data.seq_len=16", "data.num_batches=4", "task=model_loss", "task.input_argument=input_ids"),
    *("task.target_argument=labels", "task.targets=inputs"),
)


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        *((GPT, "amp_bf16"), (REENTRANT, "amp_bf16"), (OTHER, "fp32")),
        pytest.param(LLAMA, "amp_bf16", marks=pytest.mark.nightly),
    ],
)
def test_a_block_is_recomputed_in_the_dtype_of_the_forward_pass(model, mode):
    overrides = (*model, f"precision={mode}", "trainer.steps=4")
    trainings = trained(*overrides), trained(*overrides, CHECKPOINTED)
    plain, checkpointed = (training.instruments for training in trainings)
    proof, memory, dtype = checkpointed.proof(), checkpointed.memory(), "float32" if mode == "fp32" else "bfloat16"
    assert plain.proof().num_repeated_operators == 0 < proof.num_repeated_operators
    assert 0 < proof.recomputed_flops[dtype] < proof.flops[dtype]
    assert contradictions(trainings[1].config.precision, proof) == findings(trainings[1], proof) == []
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


def findings(training, proof):
    config, identity = {"trainer": asdict(training.config.trainer)}, SimpleNamespace(seed=0)
    record = SimpleNamespace(config=config, proof=proof, identity=identity, compilation=Compilation())
    return [finding.kind() for finding in findings_of_step(record)]


def test_a_setting_without_effect_is_a_finding():
    for overrides, expected in (((*IDLE, CHECKPOINTED), ["nothing_recomputed"]), (IDLE, [])):
        training = trained(*overrides, "trainer.steps=4")
        assert findings(training, training.instruments.proof()) == expected
        assert findings(training, ModeProof(flops={"float32": 1})) == [], "nothing was counted"


COMPILED = (*MLP, "trainer.compile=true", "trainer.steps=4", "precision=amp_bf16")


@pytest.fixture(autouse=True)
def _without_kernels(monkeypatch):
    """Compile by a backend that makes no kernels, as these take seconds each."""
    compile_model = lambda model, task: model.compile(backend="aot_eager")  # noqa: E731
    monkeypatch.setattr("ampsweep.training.components.built._compile", compile_model)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_every_step_runs_compiled_and_so_does_the_proof():
    eager, compiled = (trained(*COMPILED, f"trainer.compile={value}").instruments for value in ("false", "true"))
    proof, expected = compiled.proof(), eager.proof()
    assert (proof.traced, expected.traced) == ("compiled", "eager")
    assert proof.flops == expected.flops == {"bfloat16": proof.flops["bfloat16"]}
    assert proof.num_operators is None
    found = compiled.compilation()
    assert (found.graph_breaks, found.recompilations) == ([], [])
    assert found.num_graphs == 1, "evaluation, whose last batch is smaller, compiles nothing"
    assert not eager.compilation()
    memory, summary = compiled.memory(), compiled.summary()
    assert summary["memory/peak_allocated_gib"] * 2**30 == memory.peak_bytes == sum(memory.peak.values())
    assert "memory/autocast_weights_gib" not in summary
    training = trained(*COMPILED, "precision.fp32_modules=[head]")
    proof = training.instruments.proof()
    assert (proof.fp32_module_flops, proof.idle_fp32_modules) == (None, None), "it proves nothing of such modules"
    assert contradictions(training.config.precision, proof) == []


def test_a_step_that_compiles_is_not_profiled():
    """The last batch of an epoch is smaller: the second step compiles again, and the third is profiled."""
    training = assemble(*COMPILED)
    read = training.trainer.data.train_batch
    training.trainer.data.train_batch = lambda index: [whole[: 16 if index == 0 else 12] for whole in read(index)]
    training.train()
    (again,) = training.instruments.compilation().recompilations
    assert again.step == 2
    assert training.instruments.proof().traced == "compiled"


@pytest.mark.parametrize("setting", ["trainer.grad_accum_steps=2", "precision=amp_fp16"])
def test_a_compiled_model_trains_as_the_eager_model_does(setting):
    eager, compiled = (trained(*COMPILED, setting, f"trainer.compile={value}") for value in ("false", "true"))
    pairs = zip(eager.parameters(), compiled.parameters(), strict=True)
    assert all(torch.allclose(parameter, other, atol=1e-4) for parameter, other in pairs)


def test_of_a_compiled_model_the_parameters_are_watched():
    rows = trained(*COMPILED, "numerics.watch=true", "numerics.every=1").instruments.watch.numerics().magnitudes
    assert {row.kind for row in rows} == {"gradient", "weight", "update"}
