"""Under trainer.compile the steps, their measurements and their proof are those of compiled code."""

import pytest
import torch
from assembled import MLP, assemble, trained
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


def test_a_step_that_compiles_is_not_profiled():
    """The last batch of an epoch is smaller: the second step compiles again, and the third is profiled."""
    training = assemble(*COMPILED)
    read = training.trainer.data.train_batch
    training.trainer.data.train_batch = lambda index: [whole[: 16 if index == 0 else 12] for whole in read(index)]
    training.train()
    (again,) = training.instruments.compilation().recompilations
    assert again.step == 2
    assert training.instruments.proof().traced == "compiled"


def test_compiled_code_proves_nothing_of_modules_in_float32():
    training = trained(*COMPILED, "precision.fp32_modules=[head]")
    proof = training.instruments.proof()
    assert (proof.fp32_module_flops, proof.idle_fp32_modules) == (None, None)
    assert contradictions(training.config.precision, proof) == []


@pytest.mark.parametrize("setting", ["trainer.grad_accum_steps=2", "precision=amp_fp16"])
def test_it_trains_as_the_eager_model_does(setting):
    eager, compiled = (trained(*COMPILED, setting, f"trainer.compile={value}") for value in ("false", "true"))
    pairs = zip(eager.parameters(), compiled.parameters(), strict=True)
    assert all(torch.allclose(parameter, other, atol=1e-4) for parameter, other in pairs)


def test_a_model_of_torchs_own_class_is_compiled_too():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compile_parts(model, None)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="fail_on_recompile"):
        model(torch.ones(2, 4))
