"""Updates in float32 of parameters and state in half precision, and stochastic rounding of float32 to bfloat16."""

import os
from functools import partial

import pytest
import torch
from torch import nn

from ampsweep.precision import Precision, float32_update
from ampsweep.precision.float32_update import ELEMENTWISE, MASTER_WEIGHT, Float32Update, Keeping
from ampsweep.precision.stochastic_rounding import RoundingNoise, round_stochastically_

SHAPES = ((7, 5), (3, 4, 2, 2), (11,), (1,), (), (130,))


def make_parameters(dtype=torch.bfloat16):
    """Of several shapes, one in channels_last and one that is a single number."""
    torch.manual_seed(0)
    values = [torch.randn(shape) for shape in SHAPES]
    values[1] = values[1].to(memory_format=torch.channels_last)
    return [nn.Parameter(value.bfloat16().to(dtype)) for value in values]


def take_steps(optimizer, parameters, steps=range(4)):
    for step in steps:
        torch.manual_seed(100 + step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape).bfloat16().to(parameter.dtype)
        optimizer.step()


def values(parameters):
    return [parameter.detach().clone() for parameter in parameters]


def same(some, others):
    return all(torch.equal(left, right) for left, right in zip(some, others, strict=True))


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_master_weights_are_updated_as_float32_parameters(kind):
    half, wide = make_parameters(), make_parameters(torch.float32)
    mine, plain = Float32Update(half, partial(kind, lr=0.01), Keeping.MASTER), kind(wide, lr=0.01)
    take_steps(mine, half)
    take_steps(plain, wide)
    assert same([mine.state[parameter][MASTER_WEIGHT] for parameter in half], values(wide))
    assert same(values(half), [value.bfloat16() for value in values(wide)])


@pytest.mark.parametrize("mode", ["master_fp16", "master_bf16", "bf16_sr"])
def test_sparse_gradients_update_as_dense_ones(mode):
    def trained(*, sparse):
        torch.manual_seed(0)
        precision = Precision(mode, "cpu")
        model = precision.convert(nn.Embedding(9, 4, sparse=sparse))
        optimizer = precision.optimizer(partial(torch.optim.SGD, lr=0.5, momentum=0.9), model.parameters())
        for rows in ([1, 2, 2], [2, 5]):
            precision.backward(model(torch.tensor(rows)).float().square().sum())
            precision.step(optimizer)
            precision.update()
            optimizer.zero_grad()
        return values(model.parameters())

    assert same(trained(sparse=True), trained(sparse=False))


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_the_size_of_a_round_changes_no_value(kind, monkeypatch):
    def trained(keeping):
        parameters = make_parameters()
        optimizer = Float32Update(parameters, partial(kind, lr=0.01, foreach=False), keeping)
        take_steps(optimizer, parameters)
        states = [value for parameter in parameters for value in optimizer.state[parameter].values()]
        return [*values(parameters), *(value for value in states if torch.is_tensor(value) and value.dim())]

    whole = {keeping: trained(keeping) for keeping in Keeping}
    monkeypatch.setattr(float32_update, "_ROUNDS", {"cpu": (9, 9)})
    for keeping in Keeping:
        for left, right in zip(whole[keeping], trained(keeping), strict=True):
            if keeping is Keeping.STOCHASTIC:  # other numbers are drawn
                assert left.shape == right.shape
            else:
                rtol = 1e-6 if left.dtype == torch.float32 else 8e-3
                torch.testing.assert_close(left, right, rtol=rtol, atol=1e-7)


def test_groups_have_their_own_settings_and_may_change_them():
    def build(stand_ins):
        return torch.optim.SGD([{"params": stand_ins[:3], "lr": 0.0}, {"params": stand_ins[3:], "lr": 0.1}])

    def changed():
        return [not torch.equal(now, old) for now, old in zip(values(parameters), before, strict=True)]

    parameters = make_parameters()
    optimizer, before = Float32Update(parameters, build, Keeping.MASTER), values(parameters)
    parameters[5].grad = torch.ones_like(parameters[5])
    optimizer.step()
    assert changed() == [False] * 5 + [True], "parameters without gradient stay as they are"
    take_steps(optimizer, parameters, range(1))
    assert changed() == [False] * 3 + [True] * 3
    optimizer.param_groups[0]["lr"] = 0.1
    take_steps(optimizer, parameters, range(1))
    assert changed() == [True] * 6


@pytest.mark.parametrize(("keeping", "reached"), [("NEAREST", 1.0), ("STOCHASTIC", 0.9), ("MASTER", 0.9)])
def test_small_changes_count_unless_rounded_to_nearest(keeping, reached):
    """1,000 steps of 1e-4 from 1.0, where bfloat16's numbers lie 2**-8 apart, and the decay of a second moment."""
    weight = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = Float32Update([weight], partial(torch.optim.SGD, lr=1e-4), Keeping[keeping])
    weight.grad = torch.ones_like(weight)
    for _ in range(1000):
        optimizer.step()
    assert float(weight.detach().float().mean()) == pytest.approx(reached, abs=2**-9)
    if keeping == "MASTER":
        return
    optimizer = Float32Update([weight], torch.optim.AdamW, Keeping[keeping], state_dtype=torch.bfloat16)
    optimizer.step()
    first = float(optimizer.state[weight]["exp_avg_sq"].float().mean())
    weight.grad = torch.zeros_like(weight)
    for _ in range(500):
        optimizer.step()
    share = float(optimizer.state[weight]["exp_avg_sq"].float().mean()) / first
    assert share == pytest.approx(1.0 if keeping == "NEAREST" else 0.999**500, rel=0.02)


@pytest.mark.parametrize("keeping", Keeping)
@pytest.mark.parametrize("build", [torch.optim.NAdam, partial(torch.optim.SGD, lr=0.01, momentum=0.9)])
def test_a_loaded_state_continues_bitwise(build, keeping):
    dtype = torch.float32 if keeping is Keeping.MASTER else torch.bfloat16
    parameters = make_parameters()
    optimizer = Float32Update(parameters, build, keeping, state_dtype=dtype)
    take_steps(optimizer, parameters, range(3))
    others = [nn.Parameter(value) for value in values(parameters)]
    fresh = Float32Update(others, build, keeping, state_dtype=dtype)
    fresh.load_state_dict(optimizer.state_dict())
    take_steps(optimizer, parameters, range(3, 6))
    take_steps(fresh, others, range(3, 6))
    assert same(values(parameters), values(others))


def test_a_state_of_an_ordinary_optimizer_can_be_loaded():
    wide = make_parameters(torch.float32)
    plain = torch.optim.AdamW(wide)
    take_steps(plain, wide)
    half = [nn.Parameter(parameter.detach().bfloat16()) for parameter in wide]
    mine = Float32Update(half, torch.optim.AdamW, Keeping.MASTER)
    mine.load_state_dict(plain.state_dict())
    assert same([mine.state[p]["exp_avg_sq"] for p in half], [plain.state[p]["exp_avg_sq"] for p in wide])
    assert same([mine.state[p][MASTER_WEIGHT] for p in half], [p.detach().float() for p in half])
    take_steps(mine, half)
    assert float(mine.state[half[0]]["step"]) == 8


def test_classes_and_parameters_that_cannot_be_split_are_refused():
    for keeping, beginning in (
        (Keeping.STOCHASTIC, r"^stochastic rounding needs a class .*, which Adafactor is not known to do;"),
        (Keeping.MASTER, r"^an update of float32 master weights needs a class .*; torch's ASGD"),
    ):
        with pytest.raises(ValueError, match=beginning):
            Float32Update(make_parameters(), torch.optim.Adafactor, keeping)
    with_gaps = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16)[:, :2])
    with pytest.raises(ValueError, match=r"takes parameters that lie densely in memory$"):
        Float32Update([with_gaps], torch.optim.AdamW, Keeping.MASTER)


def test_no_float32_copy_is_kept_after_a_step():
    parameters = make_parameters()
    optimizer = Float32Update(parameters, torch.optim.AdamW, Keeping.STOCHASTIC, state_dtype=torch.bfloat16)
    take_steps(optimizer, parameters)
    assert [group["params"] for group in optimizer.inner.param_groups] == [[]]
    assert not optimizer.inner.state
    kept = {v.dtype for state in optimizer.state.values() for key, v in state.items() if key != "step" and v.dim()}
    assert kept == {torch.bfloat16}


def test_only_an_optimizer_that_needs_it_is_wrapped():
    for mode, state_dtype, is_wrapped in (
        *(("fp32", "bfloat16", True), ("amp_bf16", "float32", False), ("pure_bf16", "bfloat16", False)),
        *(("pure_bf16", "float32", True), ("bf16_sr", None, True), ("master_fp16", None, True)),
    ):
        precision = Precision(mode, "cpu")
        layer = precision.convert(nn.Linear(3, 3))
        optimizer = precision.optimizer(torch.optim.AdamW, layer.parameters(), state_dtype=state_dtype)
        assert isinstance(optimizer, Float32Update) == is_wrapped
        take_steps(optimizer, [*layer.parameters()])
        if state_dtype is not None:
            kept = {state["exp_avg"].dtype for state in optimizer.state.values()}
            assert kept == {getattr(torch, state_dtype)}
            continue
        with pytest.raises(ValueError, match=rf"^{mode} steps with an optimizer that Precision.optimizer has built,"):
            precision.step(torch.optim.AdamW(layer.parameters()))


CPU = torch.device("cpu")


def noise_of(seed, update, number):
    return next(iter(RoundingNoise(CPU, seed, update).numbers(number)))


@pytest.mark.parametrize("base", [1.0, -1.0, 3e-38, 1e30])
def test_the_mean_is_the_value(base):
    number = 200_000
    below = torch.tensor(base).bfloat16().float()
    bits = below.view(torch.int32)
    above = (bits + 2**16).view(torch.float32)
    for share in (0.0, 0.01, 0.25, 0.5, 0.9):
        rounded = (bits + round(share * 2**16)).view(torch.float32).repeat(number)
        round_stochastically_(rounded, noise_of(3, 1, number))
        assert {*rounded.unique().tolist()} <= {float(below), float(above)}
        ups = float((rounded == above).double().mean())
        limit = 5 * (share * (1 - share) / number) ** 0.5 + 1e-12
        assert ups == pytest.approx(round(share * 2**16) / 2**16, abs=limit)


def test_bfloat16_numbers_stay_as_they_are():
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).float()
    every = every[~every.isnan()]
    rounded = every.clone()
    round_stochastically_(rounded, noise_of(0, 1, every.numel()))
    assert torch.equal(rounded, every)
    assert rounded.isinf().sum() == 2


def test_noise_is_uniform_independent_and_reproducible():
    number = 100_000
    drawn = RoundingNoise(CPU, 7, 1).numbers(number)
    first, second, third = (next(drawn).clone() for _ in range(3))
    assert torch.equal(first, noise_of(7, 1, number))
    for other in (second, third, noise_of(7, 2, number), noise_of(8, 1, number)):
        assert abs(float(torch.corrcoef(torch.stack([first, other]).double())[0, 1])) < 5 / number**0.5
    for shift in (0, 8):
        counts = torch.bincount(((first.int() >> shift) & 0xFF).long(), minlength=256).double()
        expected = number / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < 255 + 6 * (2 * 255) ** 0.5  # chi squared


@pytest.mark.gpu
def test_the_kernel_rounds_as_the_operators_do():
    """On a GPU, or with TRITON_INTERPRET=1 on a CPU."""
    if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        pytest.skip("needs a CUDA device, or Triton and TRITON_INTERPRET=1")
    from ampsweep.precision.stochastic_rounding_kernel import launch

    device, number, begin = "cuda" if torch.cuda.is_available() else "cpu", 10_001, 2**33 - 5000
    least = torch.full((number,), 2**16, device=device)  # bits behind 1.0 from which on a value is rounded up
    for step in (2**power for power in range(15, -1, -1)):
        given = (least - step + (0x3F80 << 16)).int().view(torch.float32)
        launch(given, begin, 7, 3, 1)
        least -= step * (given > 1)
    rounded = (values := torch.randn(number, device=device)).clone()
    for first, last in ((0, 333), (333, number)):
        launch(rounded[first:last], begin + first, 7, 3, 1)
    round_stochastically_(values, (2**15 - least).to(torch.int16))
    assert torch.equal(rounded, values)
    assert abs(least.float().mean() - 2**15) < 5 * 2**16 / (12 * number) ** 0.5
