"""Updates computed in float32 of what is kept in half precision: their values, their rounding, their state."""

import os
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampsweep.precision import Precision, float32_update
from ampsweep.precision.float32_update import ELEMENTWISE, MASTER_WEIGHT, Float32Update, Keeping
from ampsweep.precision.rounding import KernelNoise, RoundingNoise, round_stochastically_

CPU = torch.device("cpu")
SHAPES = ((7, 5), (3, 4, 2, 2), (11,), (1,), (), (130,))


def parameters(dtype=torch.bfloat16):
    """Of several shapes, one in channels_last and one that is a single number."""
    torch.manual_seed(0)
    made = [torch.randn(shape) for shape in SHAPES]
    made[1] = made[1].to(memory_format=torch.channels_last)
    return [nn.Parameter(one.to(dtype)) for one in made]


def give_gradients(ones, step):
    torch.manual_seed(100 + step)
    for one in ones:
        one.grad = torch.randn(one.shape).to(one.dtype).to(memory_format=torch.preserve_format)


def take_steps(optimizer, ones, steps=range(4)):
    for step in steps:
        give_gradients(ones, step)
        optimizer.step()


class Calls(TorchDispatchMode):
    """Names of the operators called, views left out."""

    kernels = ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not (func.is_view or func.name().startswith(("aten::detach", "profiler::"))):
            self.kernels += (func.name(),)
        return func(*args, **(kwargs or {}))


def values(ones):
    return [one.detach().clone() for one in ones]


def same(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_master_weights_go_where_float32_parameters_go(kind):
    """With the same gradients: the parameters are these, rounded."""
    half, wide = parameters(), [nn.Parameter(one.detach().float()) for one in parameters()]
    mine, plain = Float32Update(half, partial(kind, lr=0.01), Keeping.MASTER), kind(wide, lr=0.01)
    for step in range(4):
        give_gradients(half, step)
        for one, other in zip(half, wide, strict=True):
            other.grad = one.grad.float()
        mine.step()
        plain.step()
    assert same([mine.state[one][MASTER_WEIGHT] for one in half], values(wide))
    assert same(values(half), [one.bfloat16() for one in values(wide)])


@pytest.mark.parametrize("keeping", Keeping)
@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_the_size_of_a_round_changes_no_value(kind, keeping, monkeypatch):
    def trained(state_dtype=torch.float32):
        ones = parameters()
        optimizer = Float32Update(ones, partial(kind, lr=0.01, foreach=False), keeping, state_dtype=state_dtype)
        take_steps(optimizer, ones)
        state = [v for one in ones for key, v in optimizer.state[one].items() if key != "step" and torch.is_tensor(v)]
        return values(ones), state

    whole = trained()
    monkeypatch.setattr(float32_update, "_ROUNDS", {"cpu": (9, 9)})
    parts = trained()
    if keeping is Keeping.STOCHASTIC:  # other numbers are drawn
        assert [one.shape for one in whole[1]] == [one.shape for one in parts[1]]
        return
    for one, other in zip([*whole[0], *whole[1]], [*parts[0], *parts[1]], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6 if one.dtype == torch.float32 else 8e-3, atol=1e-7)


def test_groups_have_their_own_settings_and_may_change_them():
    ones = parameters()
    still, moving = {"params": ones[:3], "lr": 0.0}, {"params": ones[3:], "lr": 0.1}

    def build(stand_ins):
        return torch.optim.SGD([{**still, "params": stand_ins[:3]}, {**moving, "params": stand_ins[3:]}])

    optimizer, before = Float32Update(ones, build, Keeping.MASTER), values(ones)
    take_steps(optimizer, ones, range(1))
    assert [same([one], [old]) for one, old in zip(values(ones), before, strict=True)] == [True] * 3 + [False] * 3
    optimizer.param_groups[0]["lr"] = 0.1
    take_steps(optimizer, ones, range(1))
    assert not any(same([one], [old]) for one, old in zip(values(ones), before, strict=True))


def test_a_parameter_without_gradient_stays_as_it_is():
    ones = parameters()
    optimizer, before = Float32Update(ones, torch.optim.AdamW, Keeping.STOCHASTIC), values(ones)
    ones[0].grad = torch.ones_like(ones[0])
    optimizer.step()
    assert not same(values(ones[:1]), before[:1])
    assert same(values(ones[1:]), before[1:])
    assert [*optimizer.state] == [ones[0]]


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keeping", Keeping)
def test_state_that_a_class_makes_at_once_is_taken_over(keeping, state_dtype):
    def build(stand_ins, *, at_once):
        optimizer = torch.optim.SGD(stand_ins, lr=0.01, momentum=0.9)
        for one in stand_ins if at_once else ():
            optimizer.state[one]["momentum_buffer"] = torch.zeros_like(one)
        return optimizer

    def trained(*, at_once):
        ones = parameters()
        optimizer = Float32Update(ones, partial(build, at_once=at_once), keeping, state_dtype=state_dtype)
        begun = {optimizer.state[one]["momentum_buffer"].dtype for one in ones if at_once and one.dim() > 0}
        take_steps(optimizer, ones)
        return [*values(ones), *(optimizer.state[one]["momentum_buffer"] for one in ones)], begun

    (at_once, begun), (later, _) = trained(at_once=True), trained(at_once=False)
    assert same(at_once, later)
    assert begun == {state_dtype}


@pytest.mark.parametrize(("keeping", "reached"), [("NEAREST", 1.0), ("STOCHASTIC", 0.9), ("MASTER", 0.9)])
def test_small_updates_count_unless_rounded_to_nearest(keeping, reached):
    """1,000 steps of 1e-4 from 1.0, where bfloat16's numbers lie 2**-8 apart: the mean of 4,096 weights."""
    one = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = Float32Update([one], partial(torch.optim.SGD, lr=1e-4), Keeping[keeping])
    one.grad = torch.ones_like(one)
    for _ in range(1000):
        optimizer.step()
    assert float(one.detach().float().mean()) == pytest.approx(reached, abs=2**-9)


@pytest.mark.parametrize(("keeping", "share"), [("NEAREST", 1.0), ("STOCHASTIC", 0.999**500)])
def test_a_second_moment_decays_unless_rounded_to_nearest(keeping, share):
    one = nn.Parameter(torch.ones(8192, dtype=torch.bfloat16))
    optimizer = Float32Update([one], torch.optim.AdamW, Keeping[keeping], state_dtype=torch.bfloat16)
    one.grad = torch.ones_like(one)
    optimizer.step()
    begun = float(optimizer.state[one]["exp_avg_sq"].float().mean())
    one.grad = torch.zeros_like(one)
    for _ in range(500):
        optimizer.step()
    assert float(optimizer.state[one]["exp_avg_sq"].float().mean()) / begun == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("base", [1.0, -1.0, 3e-38, 1e30])
def test_stochastic_rounding_is_right_in_the_mean(base, share):
    number = 200_000
    below = torch.tensor(base).bfloat16().float()
    bits = below.view(torch.int32)
    above = (bits + 2**16).view(torch.float32)
    given = (bits + round(share * 2**16)).view(torch.float32)
    rounded = given.repeat(number)
    (noise, *_) = RoundingNoise(CPU, 3, 1).numbers(number)
    round_stochastically_(rounded, noise)
    assert {*rounded.unique().tolist()} <= {float(below), float(above)}
    ups = float((rounded == above).double().mean())
    assert ups == pytest.approx(round(share * 2**16) / 2**16, abs=5 * (share * (1 - share) / number) ** 0.5 + 1e-12)


def test_what_bfloat16_has_already_is_not_changed_by_rounding():
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).float()
    every = every[~every.isnan()]
    rounded = every.clone()
    (noise, *_) = RoundingNoise(CPU, 0, 1).numbers(every.numel())
    round_stochastically_(rounded, noise)
    assert torch.equal(rounded, every)
    assert rounded.isinf().sum() == 2


def test_noise_is_uniform_independent_and_that_of_its_seed():
    number = 100_000
    first, second, third = (
        one.clone() for one, _ in zip(RoundingNoise(CPU, 7, 1).numbers(number), range(3), strict=False)
    )
    assert torch.equal(first, next(iter(RoundingNoise(CPU, 7, 1).numbers(number))))
    for other in (
        second,
        third,
        next(iter(RoundingNoise(CPU, 7, 2).numbers(number))),
        next(iter(RoundingNoise(CPU, 8, 1).numbers(number))),
    ):
        assert abs(float(torch.corrcoef(torch.stack([first, other]).double())[0, 1])) < 5 / number**0.5
    for shift in (0, 8):
        counts = torch.bincount(((first.int() >> shift) & 0xFF).long(), minlength=256).double()
        expected = number / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < 255 + 6 * (2 * 255) ** 0.5  # chi squared


@pytest.mark.gpu
def test_the_kernel_rounds_as_eager_does():
    """On a GPU, or with TRITON_INTERPRET=1 on a CPU."""
    if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        pytest.skip("needs a CUDA device, or Triton and TRITON_INTERPRET=1")
    from ampsweep.precision.rounding_kernel import launch

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


@pytest.mark.parametrize(("kind", "most"), [(torch.optim.SGD, (4, 6)), (torch.optim.AdamW, (5, 13))])
@pytest.mark.parametrize("keeping", [Keeping.MASTER, Keeping.STOCHASTIC])
def test_on_a_gpu_a_round_takes_few_calls(kind, most, keeping, monkeypatch):
    """Of kernels, as torch's dispatcher sees them, beside that of stochastic rounding; of views there are more."""
    recipe = [nn.Parameter(torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16)) for _ in range(3)]
    assert len(Float32Update(recipe, partial(kind, lr=0.1), keeping, device=torch.device("cuda"))._rounds) == 3
    monkeypatch.setattr(float32_update, "_ROUNDS", {})
    monkeypatch.setattr(float32_update, "noise_for", lambda *_: KernelNoise)
    ones = [nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16)) for _ in range(3)]
    state_dtype = torch.bfloat16 if keeping is Keeping.STOCHASTIC else torch.float32
    optimizer = Float32Update(ones, partial(kind, lr=0.1, fused=True), keeping, state_dtype=state_dtype)
    take_steps(optimizer, ones)
    with Calls() as called:
        optimizer.step()
    assert len(called.kernels) <= most[keeping is Keeping.STOCHASTIC], called.kernels


@pytest.mark.parametrize("keeping", Keeping)
@pytest.mark.parametrize(
    "kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.NAdam], ids=lambda kind: kind.__name__
)
def test_a_loaded_state_goes_on_bitwise(kind, keeping):
    build = partial(kind, lr=0.01, momentum=0.9) if kind is torch.optim.SGD else partial(kind, lr=0.01)
    dtype = torch.float32 if keeping is Keeping.MASTER else torch.bfloat16
    ones = parameters()
    optimizer = Float32Update(ones, build, keeping, state_dtype=dtype)
    take_steps(optimizer, ones, range(3))
    others = [nn.Parameter(one) for one in values(ones)]
    fresh = Float32Update(others, build, keeping, state_dtype=dtype)
    fresh.load_state_dict(optimizer.state_dict())
    take_steps(optimizer, ones, range(3, 6))
    take_steps(fresh, others, range(3, 6))
    assert same(values(ones), values(others))


def test_a_state_is_loaded_from_an_ordinary_optimizer_and_by_one():
    wide = [nn.Parameter(one.detach().float()) for one in parameters()]
    plain = torch.optim.AdamW(wide)
    take_steps(plain, wide)
    half = [nn.Parameter(one.detach().bfloat16()) for one in wide]
    mine = Float32Update(half, torch.optim.AdamW, Keeping.MASTER)
    mine.load_state_dict(plain.state_dict())
    assert same([mine.state[one]["exp_avg_sq"] for one in half], [plain.state[one]["exp_avg_sq"] for one in wide])
    assert same([mine.state[one][MASTER_WEIGHT] for one in half], [one.detach().float() for one in half])
    take_steps(mine, half)
    assert float(mine.state[half[0]]["step"]) == 8


def test_a_class_that_takes_parameters_whole_is_refused():
    with pytest.raises(ValueError, match=r"^stochastic rounding needs a class .*, which Adafactor is not known to do;"):
        Float32Update(parameters(), torch.optim.Adafactor, Keeping.STOCHASTIC)
    with pytest.raises(ValueError, match=r"^an update of float32 master weights needs a class .*; torch's ASGD"):
        Float32Update(parameters(), torch.optim.Adafactor, Keeping.MASTER)


def test_a_parameter_that_is_not_dense_is_refused():
    apart = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16)[:, :2])
    with pytest.raises(ValueError, match=r"takes parameters that lie densely in memory$"):
        Float32Update([apart], torch.optim.AdamW, Keeping.MASTER)


def test_nothing_that_was_cast_is_kept_after_a_step():
    ones = parameters()
    optimizer = Float32Update(ones, torch.optim.AdamW, Keeping.STOCHASTIC, state_dtype=torch.bfloat16)
    take_steps(optimizer, ones)
    assert [group["params"] for group in optimizer.inner.param_groups] == [[]]
    assert not optimizer.inner.state
    kept = {v.dtype for state in optimizer.state.values() for key, v in state.items() if key != "step" and v.dim()}
    assert kept == {torch.bfloat16}


def test_a_fused_sgd_begins_with_zero_momentum_after_a_skip():
    layer = Precision("master_fp16", "cpu").convert(nn.Linear(4, 4))
    precision = Precision("master_fp16", "cpu")
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    build = partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)
    optimizer = precision.optimizer(build, layer.parameters())
    for _ in range(40):
        precision.backward(layer(torch.ones(2, 4, dtype=torch.float16)).float().square().mean())
        precision.step(optimizer)
        precision.update()
        optimizer.zero_grad()
    momenta = [optimizer.state[one]["momentum_buffer"] for one in layer.parameters()]
    assert all(one.isfinite().all() and one.abs().max() < 10 for one in momenta)
    assert precision.scale() < 2.0**30, "steps were skipped"


@pytest.mark.parametrize(
    ("mode", "state_dtype", "kind"),
    [
        ("fp32", None, torch.optim.AdamW),
        ("fp32", "float32", torch.optim.AdamW),
        ("fp32", "bfloat16", Float32Update),
        ("amp_bf16", "bfloat16", Float32Update),
        ("pure_bf16", None, torch.optim.AdamW),
        ("pure_bf16", "bfloat16", torch.optim.AdamW),
        ("pure_bf16", "float32", Float32Update),
        ("bf16_sr", None, Float32Update),
        ("master_bf16", "bfloat16", Float32Update),
    ],
)
def test_only_an_optimizer_that_needs_it_is_wrapped(mode, state_dtype, kind):
    precision = Precision(mode, "cpu")
    layer = precision.convert(nn.Linear(3, 3))
    optimizer = precision.optimizer(torch.optim.AdamW, layer.parameters(), state_dtype=state_dtype)
    assert type(optimizer) is kind
    take_steps(optimizer, [*layer.parameters()])
    kept = {str(state["exp_avg"].dtype).removeprefix("torch.") for state in optimizer.state.values()}
    own = {"fp32": "float32", "pure_bf16": "bfloat16", "bf16_sr": "bfloat16"}.get(mode)
    assert kept == {state_dtype or own}


@pytest.mark.parametrize("mode", ["master_bf16", "master_fp16", "bf16_sr"])
def test_an_optimizer_that_would_lose_updates_is_refused(mode):
    precision = Precision(mode, "cpu")
    layer = precision.convert(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=rf"^{mode} steps with an optimizer that Precision.optimizer has built, not"):
        precision.step(torch.optim.AdamW(layer.parameters()))
