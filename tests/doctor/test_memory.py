"""Memory that does not shrink: each planted cause is named, and the change traced."""

from functools import partial

import planted_types
import pytest
import torch
from examined_trainings import examined_of
from planted_memory import PLANTED, net

from ampsweep.doctor.examined_training import NotExaminedError
from ampsweep.doctor.memory.examine import examine_memory
from ampsweep.doctor.memory.traced_memory import Held, TracedMemory
from ampsweep.doctor.memory.wide_activations import wide_activations
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.observe.calls import Call
from ampsweep.observe.functions import CallIdentity, RunningFunction

examined = partial(examined_of, num_steps=2, seconds=200.0)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_cause_is_named_and_fixed(planted):
    found = examine_memory(examined(*planted.overrides))[0]
    assert found.kind() == planted.kind
    assert planted.module is None or found.modules[0] == planted.module
    assert 8 <= found.cost_pct <= 100
    assert found.proof.mends
    assert found.change.overrides or found.change.code
    if planted.name == "cast to float32":
        assert found.change.code == "x = F.gelu(layer(x))"
        start = f"float in inner ({found.place}) casts to float32, and what follows stays there: "
        assert found.sentence.startswith(start)
        saved = found.proof.peak_bytes_before - found.proof.peak_bytes_after
        assert found.cost_pct == pytest.approx(100 * saved / found.peak_bytes)
    if planted.name == "probes for the log":
        assert found.attribute == "inner.total"
        assert found.proof.growth_bytes < found.growth_bytes / 10


def test_activations_that_halve_have_no_finding():
    halved = examined(*net("layers"))
    assert examine_memory(halved) == []
    assert halved.facts["memory/own_peak_bytes"] < 0.7 * halved.facts["memory/baseline_peak_bytes"]
    assert halved.facts["memory/own_activations_bytes"] < 0.6 * halved.facts["memory/baseline_activations_bytes"]
    assert examine_memory(examined(*net("layers", precision="pure_bf16"))) == []


def test_nothing_is_traced_in_float32():
    baseline = examined(*net("cast_to_float", precision="fp32"))
    assert (examine_memory(baseline), baseline.facts) == ([], {})


def test_a_step_that_fails_is_not_examined():
    with pytest.raises(NotExaminedError, match="no bfloat16 here"):
        examine_memory(examined(*planted_types.net("refusing_bfloat16", "amp_bf16")))


def test_values_of_very_many_paths_are_followed_back_once():
    """As in a recurrence whose states depend on the one before in two ways each."""
    call = Call(0, "aten.mul", "forward", "inner", None, (), ())
    function = RunningFunction(CallIdentity("mul", "nets.py, line 1", 0), is_autocast=True)
    made = partial(TensorOrigin, "operator", call=call, function=function)
    state = TensorOrigin("buffer", torch.float32)
    for _ in range(60):
        state = made(torch.float32, sources=(state, state))
    promoted = made(torch.float32, sources=(TensorOrigin("batch", torch.bfloat16), state))
    memory = TracedMemory(8, {}, {}, (Held(8, "activations", False, promoted),), 0)
    (group,) = wide_activations(memory, autocasts=True)
    assert (group.kind.kind(), group.modules, group.num_bytes) == ("float32_promoted", ["inner"], 8)
