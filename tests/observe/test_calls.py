from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.calls import Call, observe


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).exp()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.inner(x) * 2)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin() * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.cos()


def calls_of(model, step, **settings) -> list[Call]:
    calls: list[Call] = []
    with observe(model, lambda call, *_: calls.append(call), **settings):
        step()
    return calls


def one(calls, operator, phase="forward") -> Call:
    (found,) = (call for call in calls if call.operator == operator and call.phase == phase)
    return found


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def a_step(model, x, dtype=torch.bfloat16):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=False, foreach=False)

    def step():
        with nullcontext() if dtype is None else torch.autocast("cpu", dtype):
            loss = F.mse_loss(model(x).float(), torch.zeros(len(x), 1))
        loss.backward()
        loss.detach()
        optimizer.step()

    return step


def test_calls_have_their_module_and_line(net):
    calls = calls_of(net, a_step(net, torch.ones(3, 4)))
    exp = one(calls, "aten.exp")
    assert exp.module == "inner"
    assert exp.place is not None
    assert exp.place.endswith("test_calls.py, line 18")
    assert one(calls, "aten.mse_loss").module is None
    assert [call.index for call in calls] == [*range(len(calls))]


def test_backward_is_told_by_its_forward(net):
    calls = calls_of(net, a_step(net, torch.ones(3, 4)))
    multiplied = [call for call in calls if call.operator == "aten.mm" and call.phase == "backward"]
    assert {call.module for call in multiplied} == {"inner.layer", "head"}
    assert all(call.forward is not None and call.forward.operator == "aten.addmm" for call in multiplied)
    assert all(call.place == call.forward.place for call in multiplied if call.forward is not None)


def test_update_is_all_between_backward_and_forward(net):
    calls = calls_of(net, a_step(net, torch.ones(3, 4)))
    phases = [call.phase for call in calls]
    assert phases == sorted(phases, key=("forward", "backward", "update").index)
    assert {call.operator for call in calls if call.phase == "update"} >= {"aten.detach", "aten.add_"}
    step = a_step(net, torch.ones(3, 4))
    again = calls_of(net, lambda: (step(), step()))
    assert [call.phase for call in again].count("forward") == 2 * phases.count("forward")


def test_casts_of_autocast_are_calls_of_their_own(net):
    calls = calls_of(net, a_step(net, torch.ones(3, 4)))
    casts = [call for call in calls if call.is_cast and call.phase == "forward" and call.module == "inner.layer"]
    assert [(call.inputs, call.outputs) for call in casts] == 3 * [((torch.float32,), (torch.bfloat16,))]
    without = calls_of(net, a_step(net, torch.ones(3, 4), dtype=None))
    assert not any(call.is_cast for call in without)


def test_custom_function_has_its_module_in_backward():
    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 1))

        def forward(self, x):
            return Twice.apply(x @ self.weight)

    model = nn.Sequential(Custom())
    calls = calls_of(model, a_step(model, torch.ones(3, 4), None))
    assert one(calls, "aten.sin").module == "0"
    cos = one(calls, "aten.cos", "backward")
    assert cos.module == "0"
    assert cos.forward is one(calls, "aten.sin")


def test_recomputed_activations_have_their_module(net):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    model = Checkpointed()
    calls = calls_of(model, a_step(model, torch.ones(3, 4)))
    assert [call.module for call in calls if call.operator == "aten.exp"] == 2 * ["net.inner"]


def test_what_is_observed_computes_the_same(net):
    x = torch.randn(3, 4)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    a_step(net, x)()
    plain = [parameter.clone() for parameter in net.parameters()]
    net.load_state_dict(state)
    net.zero_grad()
    calls_of(net, a_step(net, x))
    assert all(torch.equal(a, b) for a, b in zip(plain, net.parameters(), strict=True))


def test_a_call_can_be_made_in_another_way(net):
    def doubled(func, args, kwargs):
        result = func(*args, **kwargs)
        return result * 2 if func is torch.ops.aten.exp.default else result

    seen = []
    with observe(net, lambda call, args, kwargs, result: seen.append((call.operator, result)), around=doubled):
        inner = net.inner(torch.ones(3, 4))
    assert torch.equal(inner, net.inner(torch.ones(3, 4)) * 2)
    assert "aten.exp" in [operator for operator, _ in seen]


def test_a_module_that_raises_is_left(net):
    class Raising(nn.Module):
        def forward(self, x):
            raise KeyError

    model = nn.Sequential(Raising())
    calls = []
    with observe(model, lambda call, *_: calls.append(call)) as observer:
        with pytest.raises(KeyError):
            model(torch.ones(1))
        assert observer.module is None
        torch.ones(2)
    assert [call.module for call in calls][-1] is None


def test_compiled_modules_are_seen(net):
    net.compile(backend="eager")
    calls = calls_of(net, a_step(net, torch.ones(3, 4)))
    assert one(calls, "aten.exp").module == "inner"
