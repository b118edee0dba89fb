"""Each planted fault is named and fixed, by no more than needed; those of types and speed have files of their own."""

from functools import partial

import planted_loss
import planted_memory
import planted_numerics
import pytest
import torch
from planted import examined_of

from ampsweep.doctor.examine import EXAMINATIONS
from ampsweep.doctor.memory.examine import examine_memory
from ampsweep.doctor.memory.traced_memory import Held, TracedMemory
from ampsweep.doctor.memory.wide_activations import wide_activations
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.observe.calls import Call
from ampsweep.observe.functions import CallIdentity, RunningFunction

PLANTED = (*planted_loss.PLANTED, *planted_numerics.PLANTED, *planted_memory.PLANTED)
NUM_STEPS = {"loss": None, "numerics": 6, "memory": 2}
traced = partial(examined_of, num_steps=2, seconds=200.0)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_fault_is_named_and_fixed(planted):
    examined = examined_of(
        *planted.overrides, "tracking=disabled", num_steps=NUM_STEPS[planted.complaint], seconds=200.0
    )
    found = next(iter(EXAMINATIONS[planted.complaint](examined)))
    assert (found.kind(), next(iter(found.modules), None)) == (planted.kind, planted.module)
    assert planted.operator in (None, found.operator)
    proof = [] if found.kind() == "not_precision" else [found.proof.sentence]
    is_told = found.change.overrides or found.change.code or (planted.complaint == "memory" and found.advice)
    assert not proof or (found.proof.mends and is_told)
    lines = [found.sentence, *found.evidence, found.advice or "none", *proof]
    assert not [line for line in lines if line.endswith(".") or "None" in line or "{" in line]
    if planted.complaint == "numerics":
        assert "planted_numerics.py" in found.place
        assert found.change.overrides[0].startswith(f"precision.fp32_modules=[{planted.module}")
        assert found.sentence.count(f" in {planted.module} ({found.place})") == 1
        assert found.error_pct > min(50, 4 * found.explained_pct)
    if planted.complaint == "memory":
        assert 8 <= found.cost_pct <= 100
    if planted.name.endswith("71 modules"):
        culprits = [5] if planted.name.startswith("one") else [2, 6, 13]
        assert found.modules == [f"{number}.spread" for number in culprits]
        assert found.mending.num_modules >= 60
        assert found.change.overrides == [f"precision.fp32_modules=[{','.join(found.modules)}]"]
    if planted.name == "cast to float32":
        assert found.sentence == f"float in inner ({found.place}) casts to float32, and what follows stays there"
        saved = found.proof.bytes_before - found.proof.bytes_after
        assert found.cost_pct == pytest.approx(100 * saved / found.peak_bytes)
    if planted.name == "probes for the log":
        assert found.holder == "self.total"
        assert found.proof.bytes_after < found.growth_bytes / 10


def test_activations_that_halve_have_no_finding():
    halved = traced(*planted_memory.net("layers"))
    assert examine_memory(halved) == []
    assert halved.facts["memory/own_peak_bytes"] < 0.7 * halved.facts["memory/baseline_peak_bytes"]
    assert halved.facts["memory/own_activations_bytes"] < 0.6 * halved.facts["memory/baseline_activations_bytes"]
    assert examine_memory(traced(*planted_memory.net("layers", precision="pure_bf16"))) == []


def test_values_of_very_many_paths_are_followed_back_once():
    """As in a recurrence whose states depend on the one before in two ways each."""
    call = Call(0, "aten.mul", "forward", "inner", None, (), ())
    function = RunningFunction(CallIdentity("mul", "nets.py, line 1", 0), is_autocast=True)
    made = partial(TensorOrigin, "operator", call=call, function=function)
    state = TensorOrigin("buffer", torch.float32)
    for _ in range(60):
        state = made(torch.float32, sources=(state, state))
    promoted = made(torch.float32, sources=(TensorOrigin("batch", torch.bfloat16), state))
    memory = TracedMemory(8, {}, (Held(8, "activations", False, promoted),), 0)
    (group,) = wide_activations(memory, autocasts=True)
    assert (group.kind.kind(), group.modules, group.spot.cost) == ("float32_promoted", ["inner"], 8)
