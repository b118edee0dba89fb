"""CUDA's autocast on a device in sizes only: its casts and refusals, and users' code that names CUDA."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from devices import needs_cuda
from steps import assert_to_the_byte, composed, predicted
from torch import nn

from ampsweep.precision import Precision
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
from ampsweep.training.components.built import build_data
from ampsweep.training.components.instantiate import build_component

pytestmark = pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")

A100 = TargetDevice("cuda", (8, 0))
HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
POLICIES = ("LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE")
CASTS = ("lower", "float32", "float32_result", "widest")
BF16, FP16, FP32, FP64, INT = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64
GIVEN = [(BF16,), (FP16,), (FP32,), (FP64,), (INT,), *((a, b) for a in (BF16, FP32) for b in (FP16, FP32, FP64, INT))]
OF_ONE_DEVICE = {"_cudnn_rnn", "mkldnn_rnn_layer", CAST_ONLY}


@pytest.mark.skipif(not HEADER.exists(), reason="this torch came without its headers")
def test_the_dispatcher_casts_what_torchs_header_lists():
    dispatched = dispatched_casts("cuda")
    for policy, cast in zip(POLICIES, CASTS, strict=True):
        block = re.search(rf"#define AT_FORALL_{policy}\(_\)(.*?)\n\n", HEADER.read_text(), re.DOTALL)[1]
        listed = {".".join(part.strip() for part in found.split(",")) for found in re.findall(r"_\(([^)]*)\)", block)}
        # Overloads that take names are those of named tensors.
        casts = {dispatched.get(name) for name in listed if "name" not in name.partition(".")[2].lower()}
        assert casts == {cast}


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


def test_refusals_norms_and_what_the_cpu_alone_casts():
    with FakeDevice(A100)():
        sigmoid, truth = torch.rand(8, requires_grad=True), torch.rand(8)
        assert F.binary_cross_entropy(sigmoid, truth).dtype == FP32, "without autocast it runs"
        with torch.autocast("cpu", BF16):
            with pytest.raises(AutocastRefusalError, match="use nn") as raised:
                nn.BCELoss()(sigmoid, truth)
            assert isinstance(raised.value, RuntimeError), "as torch's own is"
            with torch.autocast("cpu", enabled=False):
                assert F.binary_cross_entropy(sigmoid, truth).dtype == FP32
            volumes, rows = torch.randn(2, 3, 4, 4, 4, dtype=BF16), torch.randn(4, 8, dtype=BF16)
            pooled, padded = F.avg_pool3d(volumes, 2), F.pad(volumes, (1,) * 6, mode="replicate")
            assert pooled.dtype == padded.dtype == BF16, "only the CPU casts them"
            assert torch.ops.aten.norm.Scalar(rows, 2).dtype == FP32
            assert torch.norm_except_dim(rows, 2, 0).dtype == FP32, "as in weight_norm"


def ancestors(node):
    if node is not None:
        yield node
        for before, _ in node.next_functions:
            yield from ancestors(before)


@pytest.mark.parametrize(("cached", "num_casts"), [(True, 1), (False, 2)])
def test_a_weight_is_cast_once_and_softmax_casts_by_itself(cached, num_casts):
    with FakeDevice(A100)(), torch.autocast("cpu", BF16, cache_enabled=cached):
        weight = nn.Parameter(torch.randn(4, 4))
        rows = [torch.einsum("ij,kj->ik", torch.randn(2, 4), weight) for _ in range(2)]
        casts = {node for row in rows for node in ancestors(row.grad_fn) if node.name() == "ToCopyBackward0"}
        assert len(casts) == num_casts
        assert {row.dtype for row in rows} == {BF16}
    with FakeDevice(A100)():
        scores = torch.randn(8, 10, dtype=FP16, requires_grad=True)
        result = F.softmax(scores, -1, dtype=FP32)
        assert result.dtype == FP32
        nodes = [node.name() for node in ancestors(result.grad_fn)]
        assert nodes == ["SoftmaxBackward0", "torch::autograd::AccumulateGrad"]
        result.sum().backward()
        assert scores.grad.dtype == FP16


AMP_BF16 = {
    "WithAutocastable": [("autocastable", BF16), ("autocastable, backward", BF16)],
    "WithFloat32": [("float32", FP32), ("float32, backward", FP32)],
    "Decorated": [("decorated", BF16)],
    "DecoratedOff": [("decorated, off", FP32)],
    "Region": [("before", BF16), ("region", FP32), ("again", FP16)],
}
WITHOUT = {name: [(place, FP32) for place, _ in places] for name, places in AMP_BF16.items()} | {
    "Decorated": [("decorated", BF16)],
    "Region": [("before", FP32), ("region", FP32), ("again", FP16)],
}
EXPECTED = [
    (name, mode, places[name]) for mode, places in (("amp_bf16", AMP_BF16), ("fp32", WITHOUT)) for name in places
]
IN_PREDICTIONS = [case for case in EXPECTED if torch.cuda.is_available() or case[0] != "Decorated"]
"""Where CUDA is missing, a decorator that names it is off from the user's import on."""


def own(name):
    return ("model=custom", f"model._target_=autocast_users.{name}", "data=digits", "data.batch_size=16")


@pytest.mark.parametrize(("name", "mode", "places"), IN_PREDICTIONS)
def test_a_prediction_has_the_dtypes_of_cuda(name, mode, places, seen):
    named = predicted(*own(f"ON_CUDA.{name}"), f"precision={mode}", target=A100)
    assert seen == places
    if mode == "amp_bf16":
        # `"cuda" if torch.cuda.is_available() else "cpu"` gives cpu on the machine that predicts, and means the target.
        asked = predicted(*own(f"HERE.{name}"), f"precision={mode}", target=A100)
        assert named.peak() == asked.peak()
        assert named.at(named.end_of_forward) == asked.at(asked.end_of_forward)


@needs_cuda
@pytest.mark.parametrize(("name", "mode", "places"), EXPECTED)
def test_a_gpu_gives_them_those_dtypes(name, mode, places, seen):
    config = composed(*own(f"ON_CUDA.{name}"), f"precision={mode}", "device=cuda")
    precision = Precision(mode, "cuda")
    model = precision.convert(build_component("model", config.model))
    inputs, _ = build_data(config, torch.device("cuda")).train_batch(0)
    with precision.flags(), precision.autocast():
        loss = model(inputs).float().square().mean()
    loss.backward()
    assert seen == places


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((f"HERE.{name}", "amp_bf16") for name in AMP_BF16),
        *(("HERE.Region", "amp_fp16"), ("ON_CUDA.Region", "fp32"), ("ON_CUDA.Decorated", "amp_fp16")),
    ],
)
def test_for_the_cpu_the_prediction_is_exact(name, mode):
    assert_to_the_byte(*own(name), f"precision={mode}")


@pytest.mark.parametrize("mode", ["amp_bf16", "amp_fp16"])
def test_modules_in_float32_are_so_on_cuda(mode):
    model = ("model=mlp_small", "data=digits")
    plain, covered, whole = (
        predicted(*model, f"precision={arm}", *more, target=A100)
        for arm, more in ((mode, ()), (mode, ("precision.fp32_modules=[blocks]",)), ("fp32", ()))
    )
    kept = [timeline.at(timeline.end_of_forward)["activations"] for timeline in (plain, covered, whole)]
    assert kept[0] < kept[2] < kept[1], "the head, outside, takes a copy of its inputs in half precision"


def test_torch_is_restored_afterwards():
    names = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")

    def state():
        functions = [getattr(torch, name) for name in names], torch.autocast.__enter__
        enabled = torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")
        return functions, torch.get_autocast_dtype("cpu"), enabled

    before = state()
    with FakeDevice(A100)():
        assert torch.get_autocast_dtype("cuda") == FP16, "CUDA's default"
        with torch.autocast("cuda", BF16):
            assert torch.is_autocast_enabled("cuda")
            assert torch.is_autocast_enabled(), "without a type of device CUDA is meant"
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == BF16
            with torch.autocast("cuda"):
                assert torch.get_autocast_dtype("cuda") == BF16, "of the region around"
        with torch.autocast("cuda"):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == FP16
    assert state() == before
    assert before[2] == (False, False)
