"""Under trainer.compile the steps, what is measured of them and what is proved are those of compiled code."""

import pytest
import torch
from assembled import MLP, assemble
from torch import nn

from ampsweep.analysis.contradictions import contradictions
from ampsweep.training.components.built import _compile as compile_parts

COMPILED = (*MLP, "trainer.compile=true", "trainer.steps=4", "precision=amp_bf16")


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch):
    """Compile by a backend that makes no kernels, as these take seconds each."""
    compile_model = lambda model, task: model.compile(backend="aot_eager")  # noqa: E731
    monkeypatch.setattr("ampsweep.training.components.built._compile", compile_model)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_every_step_runs_compiled_and_the_proof_is_of_one():
    eager, compiled = assemble(*COMPILED, "trainer.compile=false"), assemble(*COMPILED)
    eager.train()
    compiled.train()
    proof, expected = compiled.trainer.instruments.proof(), eager.trainer.instruments.proof()
    assert (proof.traced, expected.traced) == ("compiled", "eager")
    assert proof.flops == expected.flops == {"bfloat16": proof.flops["bfloat16"]}
    assert proof.num_operators is None
    found = compiled.trainer.instruments.compilation()
    assert (found.graph_breaks, found.recompilations) == ([], [])
    assert found.num_graphs == 1, "evaluation, whose last batch is smaller, compiles nothing"
    assert not eager.trainer.instruments.compilation()


def test_the_peak_is_that_of_the_compiled_step():
    training = assemble(*COMPILED, "precision=fp32")
    training.train()
    instruments = training.trainer.instruments
    memory, summary = instruments.memory(), instruments.summary()
    assert summary["memory/peak_allocated_gib"] * 2**30 == memory.peak_bytes == sum(memory.peak.values())
    assert memory.peak["parameters"] == sum(p.nbytes for p in training.parameters())
    assert "memory/autocast_weights_gib" not in summary


def test_a_step_that_compiles_is_not_looked_into():
    """The last batch of an epoch is smaller: the second step compiles again, and the third is profiled."""
    training = assemble(*COMPILED)
    read = training.trainer.data.train_batch
    training.trainer.data.train_batch = lambda index: [one[: 16 if index == 0 else 12] for one in read(index)]
    training.train()
    (again,) = training.trainer.instruments.compilation().recompilations
    assert again.step == 2
    assert training.trainer.instruments.proof().traced == "compiled"


def test_compiled_code_tells_nothing_of_modules_in_float32():
    training = assemble(*COMPILED, "precision.fp32_modules=[head]")
    training.train()
    proof = training.trainer.instruments.proof()
    assert (proof.fp32_module_flops, proof.idle_fp32_modules) == (None, None)
    assert contradictions(training.config.precision, proof) == []


@pytest.mark.parametrize("setting", ["trainer.grad_accum_steps=2", "numerics.watch=true", "precision=amp_fp16"])
def test_it_trains_as_the_eager_one_does(setting):
    eager, compiled = assemble(*COMPILED, setting, "trainer.compile=false"), assemble(*COMPILED, setting)
    assert eager.train().status == compiled.train().status == "completed"
    pairs = zip(eager.parameters(), compiled.parameters(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in pairs)


class Gated(nn.Module):
    """Elementwise operators in a row, which a compiler fuses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        h = self.first(x)
        return self.last((torch.sigmoid(h) * h + 0.3 * h) * 1.7 + h)


def test_a_model_of_torchs_own_class_is_compiled_too():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compile_parts(model, None)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="fail_on_recompile"):
        model(torch.ones(2, 4))
