"""Observed calls: each operator with its module, its line and the phase of the step, and nothing computed otherwise."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.calls import observe


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).exp()


EXP = f"test_calls.py, line {Inner.forward.__code__.co_firstlineno + 1}"


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin() * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.cos()


def calls_of(model, step, **settings):
    calls = []
    with observe(model, lambda call, *_: calls.append(call), **settings):
        step()
    return calls


def only(calls, operator, phase="forward"):
    (found,) = (call for call in calls if call.operator == operator and call.phase == phase)
    return found


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(inner=Inner(), head=nn.Linear(4, 1)))


X = torch.linspace(-1, 1, 12).view(3, 4)


class Named(torch.Tensor):
    """As users write them: with attributes, and the operators of torch."""


def test_data_of_parameters_and_of_own_tensors_is_observed(net):
    def step():
        net.head.weight.data.mul_(2)
        torch.zeros(3).as_subclass(Named).detach().add_(1)

    assert [call.operator for call in calls_of(net, step)][-1] == "aten.add_"
    assert only(calls_of(net, step), "aten.mul_")


def a_step(model, dtype=torch.bfloat16):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=False, foreach=False)

    def step():
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.mse_loss(model(X).float(), torch.zeros(len(X), 1))
        loss.backward()
        loss.detach()
        optimizer.step()

    return step


def test_calls_and_casts_of_autocast_have_their_module_line_and_phase(net):
    step = a_step(net)
    calls = calls_of(net, step)
    casts = [call for call in calls if call.is_cast and call.phase == "forward" and call.module == "inner.layer"]
    assert [(call.inputs, call.outputs) for call in casts] == 3 * [((torch.float32,), (torch.bfloat16,))]
    assert not any(call.is_cast for call in calls_of(net, a_step(net, dtype=None)))
    exp = only(calls, "aten.exp")
    assert exp.module == "inner"
    assert exp.place.endswith(EXP)
    assert only(calls, "aten.mse_loss").module is None
    assert [call.index for call in calls] == [*range(len(calls))]
    assert only(calls_of(net, step, places=False), "aten.exp").place is None
    phases = [call.phase for call in calls]
    assert phases == sorted(phases, key=("forward", "backward", "update").index)
    assert {call.operator for call in calls if call.phase == "update"} >= {"aten.detach", "aten.add_"}
    two_steps = calls_of(net, lambda: (step(), step()))
    assert [call.phase for call in two_steps].count("forward") == 2 * phases.count("forward")
    multiplied = [call for call in calls if call.operator == "aten.mm" and call.phase == "backward"]
    assert {call.module for call in multiplied} == {"inner.layer", "head"}
    assert {call.forward.operator for call in multiplied} == {"aten.addmm"}
    assert all(call.place == call.forward.place for call in multiplied)


def test_custom_functions_and_checkpoints_keep_their_module(net):
    model = nn.Sequential(net)
    net.head.forward = lambda x: Twice.apply(x @ net.head.weight.t())
    net.forward = lambda x, forward=net.forward: checkpoint(forward, x, use_reentrant=False)
    calls = calls_of(model, a_step(model, None))
    assert [call.module for call in calls if call.operator == "aten.exp"] == 2 * ["0.inner"]
    cos = only(calls, "aten.cos", "backward")
    assert cos.module == only(calls, "aten.sin").module == "0.head"
    assert cos.forward is only(calls, "aten.sin")


def test_a_compiled_model_is_observed_and_computes_the_same(net):
    compiled = copy.deepcopy(net)
    a_step(net)()
    compiled.compile(backend="eager")
    assert only(calls_of(compiled, a_step(compiled)), "aten.exp").module == "inner"
    assert all(map(torch.equal, net.parameters(), compiled.parameters()))


def test_a_call_can_be_replaced_or_raise(net):
    def doubled(func, args, kwargs):
        result = func(*args, **kwargs)
        return result * 2 if func is torch.ops.aten.exp.default else result

    reported = {}
    with observe(net, lambda call, _, __, result: reported.update({call.operator: result}), around=doubled):
        inner = net.inner(X)
    assert torch.equal(inner, net.inner(X) * 2)
    assert reported["aten.exp"] is inner

    with observe(net, lambda *_: None) as observer:
        with pytest.raises(RuntimeError):
            net(torch.ones(3, 5))
        assert (observer.module, observer.failed.module) == (None, "inner.layer")
