"""CUDA's autocast on a device in sizes only: what it casts and refuses."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampsweep.predict.autocast_dispatch import (
    RefusedCallError,
    autocast_operators,
    call_under_autocast,
    dispatched_casts,
)
from ampsweep.predict.cuda_autocast import CAST_ONLY, AutocastRefusalError
from ampsweep.predict.cuda_operators import cuda_dispatch
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.target_device import TargetDevice

A100 = TargetDevice("cuda", (8, 0))
HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
BF16, FP16, FP32, FP64, INT = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64
GIVEN = [(BF16,), (FP16,), (FP32,), (FP64,), (INT,), *((a, b) for a in (BF16, FP32) for b in (FP16, FP32, FP64, INT))]
OF_ONE_DEVICE = {"_cudnn_rnn", "mkldnn_rnn_layer", CAST_ONLY}


def in_header(policy):
    """Operators in torch's own list, as its header gives it; overloads that take names are those of named tensors."""
    block = re.search(rf"#define AT_FORALL_{policy}\(_\)(.*?)\n\n", HEADER.read_text(), re.DOTALL)[1]
    names = {".".join(part.strip() for part in found.split(",")) for found in re.findall(r"_\(([^)]*)\)", block)}
    return {name for name in names if "name" not in name.partition(".")[2].lower()}


@pytest.mark.skipif(not HEADER.exists(), reason="this torch came without its headers")
def test_the_dispatcher_says_what_torchs_header_lists():
    dispatched = dispatched_casts("cuda")
    for policy, cast in {
        "LOWER_PRECISION_FP": "lower",
        "FP32": "float32",
        "FP32_SET_OPT_DTYPE": "float32_result",
        "PROMOTE": "widest",
    }.items():
        listed = in_header(policy)
        assert listed
        assert {dispatched.get(name) for name in listed} == {cast}


def outcome(name, device_type, *how):
    try:
        return call_under_autocast(name, device_type, *how)
    except RefusedCallError:
        return "refused"


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_every_operator_is_cast_as_cudas_dispatcher_casts_it(dtype):
    names = {*autocast_operators("cuda"), *autocast_operators("cpu")} - OF_ONE_DEVICE
    cases = [*product(sorted(names), GIVEN, (None, FP64))]
    on_cuda = [outcome(name, "cuda", given, dtype, requested) for name, given, requested in cases]
    with cuda_dispatch(A100):
        ours = [outcome(name, "cpu", given, dtype, requested) for name, given, requested in cases]
    assert len(names) > 150
    assert [case for case, a, b in zip(cases, on_cuda, ours, strict=True) if a != b] == []
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.cuda.is_initialized()


def test_what_cuda_refuses_is_refused_wherever_it_is_called():
    with FakeDevice(A100)():
        sigmoid, truth = torch.rand(8, requires_grad=True), torch.rand(8)
        assert F.binary_cross_entropy(sigmoid, truth).dtype == FP32, "without autocast it runs"
        with torch.autocast("cpu", BF16), pytest.raises(AutocastRefusalError, match="use nn"):
            nn.BCELoss()(sigmoid, truth)


def test_a_model_may_catch_what_is_refused_as_on_cuda():
    with FakeDevice(A100)(), torch.autocast("cpu", BF16):
        try:
            F.binary_cross_entropy(torch.rand(8), torch.rand(8))
        except RuntimeError:
            with torch.autocast("cpu", enabled=False):
                assert F.binary_cross_entropy(torch.rand(8), torch.rand(8)).dtype == FP32


def test_what_the_cpu_alone_casts_stays_as_it_is():
    with FakeDevice(A100)(), torch.autocast("cpu", BF16):
        half = torch.randn(2, 3, 4, 4, 4, dtype=BF16)
        assert F.avg_pool3d(half, 2).dtype == BF16
        assert F.pad(half, (1,) * 6, mode="replicate").dtype == BF16


def test_norms_are_taken_in_float32():
    with FakeDevice(A100)(), torch.autocast("cpu", BF16):
        half = torch.randn(4, 8, dtype=BF16)
        assert torch.ops.aten.norm.Scalar(half, 2).dtype == FP32
        assert torch.norm_except_dim(half, 2, 0).dtype == FP32, "as in weight_norm"


@pytest.mark.parametrize(("cached", "num_casts"), [(True, 1), (False, 2)])
def test_a_weight_is_cast_once_where_the_cpu_has_no_cast(cached, num_casts):
    with FakeDevice(A100)(), torch.autocast("cpu", BF16, cache_enabled=cached):
        weight = nn.Parameter(torch.randn(4, 4))
        rows = [torch.einsum("ij,kj->ik", torch.randn(2, 4), weight) for _ in range(2)]
        casts = {node for row in rows for node in ancestors(row.grad_fn) if node.name() == "ToCopyBackward0"}
        assert len(casts) == num_casts
        assert {row.dtype for row in rows} == {BF16}


def ancestors(node):
    if node is not None:
        yield node
        for before, _ in node.next_functions:
            yield from ancestors(before)


def test_softmax_takes_float16_to_float32_without_a_copy():
    with FakeDevice(A100)():
        scores = torch.randn(8, 10, dtype=FP16, requires_grad=True)
        result = F.softmax(scores, -1, dtype=FP32)
        assert (result.dtype, result.grad_fn.name()) == (FP32, "SoftmaxBackward0")
        assert [node.name() for node in ancestors(result.grad_fn)][1] == "torch::autograd::AccumulateGrad"
        result.sum().backward()
        assert scores.grad.dtype == FP16
