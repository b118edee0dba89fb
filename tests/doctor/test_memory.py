"""Memory that shrinks, and the search for what keeps it from shrinking."""

from functools import partial

import torch
from planted import examined_of
from planted_memory import net

from ampsweep.doctor.memory.examine import examine_memory
from ampsweep.doctor.memory.traced_memory import Held, TracedMemory
from ampsweep.doctor.memory.wide_activations import wide_activations
from ampsweep.doctor.tensor_origins import TensorOrigin
from ampsweep.observe.calls import Call
from ampsweep.observe.functions import CallIdentity, RunningFunction

examined = partial(examined_of, num_steps=2, seconds=200.0)


def test_activations_that_halve_have_no_finding():
    halved = examined(*net("layers"))
    assert examine_memory(halved) == []
    assert halved.facts["memory/own_peak_bytes"] < 0.7 * halved.facts["memory/baseline_peak_bytes"]
    assert halved.facts["memory/own_activations_bytes"] < 0.6 * halved.facts["memory/baseline_activations_bytes"]
    assert examine_memory(examined(*net("layers", precision="pure_bf16"))) == []


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
