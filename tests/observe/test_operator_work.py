"""The work of operators, counted by hand."""

from collections import Counter
from dataclasses import astuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.operator_work import WorkLog, reads_device
from ampsweep.observe.operators import OperatorMode, is_in_backward

FP32, HALF, INT64 = 4, 2, 8


def works_of(call):
    """The works of all operators of a call that run kernels or make the host wait."""
    log = WorkLog()

    def around(func, args, kwargs):
        inputs, result = [*tensors_in((args, kwargs))], func(*args, **kwargs)
        log.add(func, args, kwargs, inputs, result, in_backward=is_in_backward())
        return result

    with OperatorMode(around):
        call()
    return [work for work in log.works if work.kind != "none"]


def moved(work):
    return work.kind, work.read_bytes, work.written_bytes, work.num_elements


def filled(*shape, **settings):
    return torch.ones(shape, **settings)


def test_a_linear_layer_is_a_product_in_forward_and_two_in_backward():
    layer, x, gradient = nn.Linear(8, 3), filled(5, 8, requires_grad=True), filled(5, 3)
    forward, of_x, of_weight, of_bias = works_of(lambda: layer(x).backward(gradient))
    assert moved(forward) == ("product", FP32 * (5 * 8 + 8 * 3 + 3), FP32 * 5 * 3, 5 * 8)
    sizes = [(work.phase, work.sizes, work.flops) for work in (forward, of_x, of_weight)]
    assert Counter(sizes) == {
        ("forward", (1, 5, 3, 8), 2 * 5 * 3 * 8): 1,
        ("backward", (1, 5, 8, 3), 2 * 5 * 3 * 8): 1,
        ("backward", (1, 3, 8, 5), 2 * 5 * 3 * 8): 1,
    }
    assert (of_bias.kind, of_bias.read_bytes) == ("reduction", FP32 * 5 * 3)


def test_products_of_batches_and_of_vectors_have_all_their_sizes():
    a, b = filled(2, 3, 4, 5), filled(3, 5, 6)
    (product,) = works_of(lambda: torch.bmm(a[0], b))
    assert (product.sizes, product.flops) == ((3, 4, 6, 5), 2 * 3 * 4 * 6 * 5)
    (product,) = (work for work in works_of(lambda: torch.einsum("abij,bjk->abik", a, b)) if work.flops)
    assert (product.sizes, product.flops) == ((3, 2 * 4, 6, 5), 2 * 2 * 3 * 4 * 6 * 5)
    (product,) = works_of(lambda: torch.mv(a[0, 0], filled(5)))[-1:]
    assert (product.sizes, product.read_bytes) == ((1, 4, 1, 5), FP32 * (4 * 5 + 5))


def test_scales_of_rows_are_no_operands_of_a_product_in_float8():
    a, b = (filled(rows, 64).to(torch.float8_e4m3fn) for rows in (32, 16))
    scales = {"scale_a": filled(32, 1), "scale_b": filled(1, 16)}
    (product,) = works_of(lambda: torch._scaled_mm(a, b.t(), **scales, out_dtype=torch.bfloat16))
    assert (product.sizes, product.dtype) == ((1, 32, 16, 64), "float8_e4m3fn")
    assert product.flops == 2 * 32 * 16 * 64
    assert (product.read_bytes, product.written_bytes) == (32 * 64 + 64 * 16 + FP32 * (32 + 16), HALF * 32 * 16)


def test_a_convolution_in_groups_is_a_product_for_each_group_and_gradient():
    layer, x = nn.Conv2d(8, 16, 3, padding=1, groups=4), filled(2, 8, 10, 10, requires_grad=True)
    gradient = filled(2, 16, 10, 10)
    forward, *backward = works_of(lambda: layer(x).backward(gradient))
    positions, in_each, out_each, flops = 2 * 10 * 10, 2, 4, 2 * 2 * 10 * 10 * 16 * 2 * 9
    assert (forward.sizes, forward.taps) == ((4, positions, out_each, in_each * 9), 9)
    assert [work.sizes for work in backward] == [
        (4, positions, in_each, out_each * 9),
        (4, out_each, in_each * 9, positions),
        None,
    ]
    assert [work.flops for work in (forward, *backward)] == [flops, flops, flops, 0]
    of_x, of_weight, of_bias = backward
    weight, y = FP32 * 16 * 2 * 9, FP32 * gradient.numel()
    assert moved(of_x)[1:3] == (y + weight, FP32 * x.numel())
    assert moved(of_weight)[1:3] == (FP32 * x.numel() + y, weight)
    assert (of_bias.kind, of_bias.written_bytes) == ("reduction", FP32 * 16)
    assert [work.num_calls for work in backward] == [1, 0, 0], "one call launches all"


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_transposed_convolution_takes_each_position_of_its_input(channels_last):
    layer, x = nn.ConvTranspose2d(4, 6, 3, stride=2), filled(2, 4, 8, 8)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    (forward,) = works_of(lambda: layer(x))
    assert (forward.sizes, forward.flops) == ((1, 2 * 8 * 8, 6, 4 * 9), 2 * 2 * 8 * 8 * 6 * 4 * 9)
    assert forward.is_strided is not channels_last


def test_attention_has_the_sizes_of_its_heads():
    q, k, v = (filled(2, 3, length, 8, requires_grad=True) for length in (16, 32, 32))
    gradient = filled(2, 3, 16, 8)
    attention = F.scaled_dot_product_attention
    forward, backward, *_ = works_of(lambda: attention(q, k, v).backward(gradient))
    assert {work.kind for work in (forward, backward)} == {"attention"}
    assert {work.sizes for work in (forward, backward)} == {(2 * 3, 16, 32, 8)}
    assert forward.flops == 2 * 2 * 2 * 3 * 16 * 32 * 8
    assert 2 * backward.flops == 5 * forward.flops, "it computes the scores again"
    assert forward.read_bytes == FP32 * 2 * 3 * (16 + 32 + 32) * 8


def test_lookups_move_the_rows_that_they_look_up():
    table, positions = filled(1000, 16), torch.arange(8)
    rows, read = FP32 * 8 * 16, INT64 * 8
    (found,) = works_of(lambda: F.embedding(positions, table))
    assert moved(found) == ("gather", rows + read, rows, 1000 * 16)
    (_, bag) = works_of(lambda: F.embedding_bag(positions.view(4, 2), table, mode="sum"))
    assert (bag.kind, bag.read_bytes - INT64 * 4) == ("gather", rows + read), "and an offset for each bag"
    for change in (
        lambda: table.__setitem__(positions, filled(8, 16)),
        lambda: table.index_add_(0, positions, filled(8, 16)),
        lambda: table.scatter_add_(0, positions[:, None].expand(8, 16), filled(8, 16)),
    ):
        *_, written = works_of(change)
        assert moved(written)[:3] == ("gather", 2 * rows + read, rows)
    (of_table,) = works_of(lambda: torch.ops.aten.embedding_dense_backward(filled(8, 16), positions, 1000, -1, False))[
        -1:
    ]
    assert moved(of_table)[:3] == ("gather", rows + read, FP32 * 1000 * 16)


@pytest.mark.parametrize("num_tensors", [100, 111])
def test_a_list_of_tensors_takes_a_launch_for_as_many_as_fit(num_tensors):
    of_all = [filled(10) for _ in range(num_tensors)]
    (scaled,) = works_of(lambda: torch._foreach_mul_(of_all, 2.0))
    num_bytes = FP32 * 10 * num_tensors
    assert moved(scaled) == ("foreach", num_bytes, num_bytes, 10 * num_tensors)
    assert scaled.num_kernels == (1 if num_tensors <= 110 else 2)
    (added,) = works_of(lambda: torch._foreach_add_(of_all, of_all[::-1]))
    assert added.num_kernels == 2, "64 of two lists"
    (large,) = works_of(lambda: torch._foreach_mul_([filled(321 * 65536)], 2.0))[-1:]
    assert large.num_kernels == 2, "320 chunks of 64 Ki elements"


def test_a_fused_optimizer_reads_and_writes_its_state():
    parameter = nn.Parameter(filled(1000))
    optimizer = torch.optim.AdamW([parameter], fused=True)
    parameter.grad = filled(1000)
    optimizer.step()
    *_, update = works_of(optimizer.step)
    assert update.kind == "foreach"
    assert update.written_bytes - FP32 * 3 * 1000 in (0, FP32), "the parameter and two moments; perhaps the step"
    assert update.read_bytes == FP32 * (4 * 1000 + 1)


def test_elementwise_operators_move_each_operand_once():
    x, row, half = filled(8, 16), filled(16), filled(8, 16, dtype=torch.float16)
    size = FP32 * 8 * 16
    for call, read in (
        (lambda: x + row, size + FP32 * 16),
        (lambda: x * x, size),
        (lambda: x.add_(row.expand(8, 16)), size + FP32 * 16),
        (lambda: torch.where(x > 0, x, 0.0), size + 8 * 16 + FP32),
        (lambda: x.masked_fill(x > 0, 0.0), size + 8 * 16),
    ):
        *_, work = works_of(call)
        assert moved(work) == ("elementwise", read, size, 8 * 16)
    (cast,) = works_of(lambda: x.to(torch.bfloat16))
    assert moved(cast)[:3] == ("cast", size, size // 2)
    (copied,) = works_of(lambda: half.copy_(x))
    assert moved(copied)[:3] == ("cast", size, size // 2), "what is overwritten is not read"
    for fill in (lambda: torch.zeros_like(x), lambda: x.new_zeros(8, 16), x.zero_):
        assert [moved(work)[:3] for work in works_of(fill)] == [("fill", 0, size)]
    (transposed,) = works_of(lambda: x + filled(16, 8).t())[-1:]
    assert transposed.is_strided


def test_views_run_no_kernel():
    x = filled(2, 3, 4)
    assert works_of(lambda: x.view(6, 4).t()[:3].unsqueeze(0).expand(5, 3, 6).detach().unsafe_split(1)) == []


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda x: torch.softmax(x, -1), "softmax"),
        (lambda x: F.layer_norm(x, (16,), filled(16)), "normalization"),
        (lambda x: x.sum(-1), "reduction"),
        (lambda x: x.amax(), "reduction"),
        (lambda x: F.mse_loss(x, x), "reduction"),
        (lambda x: F.gelu(x), "transcendental"),
        (lambda x: F.glu(x), "transcendental"),
        (lambda x: F.unfold(x[None, None], 3), "copy"),
        (lambda x: F.pad(x[None], (1, 1), mode="reflect"), "copy"),
        (lambda x: F.max_pool2d(x[None, None], 2), "elementwise"),
        (lambda x: F.interpolate(x[None, None], scale_factor=2), "elementwise"),
        (lambda x: F.grid_sample(x[None, None], filled(1, 2, 2, 2), align_corners=False), "gather"),
    ],
)
def test_operators_have_the_kind_that_decides_on_their_rate(call, kind):
    work = next(work for work in reversed(works_of(lambda: call(filled(8, 16)))) if work.kind != "fill")
    assert work.kind == kind


def test_a_recurrent_layer_is_one_operator():
    layer, x = nn.LSTM(16, 16), filled(8, 2, 16)
    (recurrent,) = [work for work in works_of(lambda: layer(x)) if work.flops]
    assert (recurrent.kind, recurrent.flops) == ("recurrent", 2 * 8 * 2 * 2 * 16 * 4 * 16)


def test_the_host_waits_for_values_and_for_the_size_of_what_a_mask_chooses():
    x = filled(8, 16)
    assert [work.kind for work in works_of(lambda: x.sum().item())] == ["reduction", "wait"]
    assert [work.kind for work in works_of(lambda: x[x > 0])] == ["elementwise", "wait", "gather"]
    assert [work.kind for work in works_of(lambda: x[torch.arange(2)])] == ["fill", "gather"]


def test_a_copy_to_the_host_makes_it_wait():
    there, here = torch.zeros(1, device="meta"), torch.zeros(1)
    assert reads_device("_to_copy", [there], [here])
    assert not reads_device("_to_copy", [here], [here])
    assert reads_device("index_put_", [there, there.bool(), there], [there])
    assert not reads_device("index_put_", [there.bool(), there.long(), there.bool()], [there]), "values, and no mask"


def test_phases_are_those_of_a_step():
    model, x = nn.Linear(4, 4), filled(2, 4)

    def step():
        model(x).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)

    found = works_of(step)
    assert [*dict.fromkeys(work.phase for work in found)] == ["forward", "backward", "update"]
    assert {work.operator for work in found if work.phase == "update"} == {"sub_"}
    assert len({astuple(work) for work in found}) == len({id(work) for work in found}), "equal works are one object"
