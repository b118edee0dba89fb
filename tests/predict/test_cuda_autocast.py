"""CUDA's autocast on a device in sizes only: its casts and refusals, and users' code that names CUDA."""

import pytest
import torch
import torch.nn.functional as F
from steps import MLP, own, predicted
from torch import nn

from ampsweep.predict.cuda_autocast import AutocastRefusalError
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.target_device import TargetDevice

pytestmark = pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")

A100 = TargetDevice("cuda", (8, 0))
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize("half", [BF16, FP16])
def test_operators_are_cast_as_cuda_casts_them(half):
    with FakeDevice(A100)(), torch.autocast("cpu", half):
        low, high, double = (torch.randn(4, 4, dtype=dtype) for dtype in (half, FP32, FP64))
        weight = nn.Parameter(torch.randn(4, 4))
        row = torch.einsum("ij,kj->ik", high, weight)[0]
        for dtype, results in {
            half: (high @ low, F.linear(high, weight), row, torch.cat((low, low)), low.tanh()),
            FP32: (low.exp(), low**2, F.layer_norm(low, (4,)), low.sum(), low.cumsum(0), low.norm(), row.dot(high[0])),
            FP64: (double.exp(), double.sum(), low.sum(dtype=FP64), low.softmax(0, dtype=FP64)),
        }.items():
            assert {result.dtype for result in results} == {dtype}
        with torch.inference_mode():
            assert F.linear(high, weight).dtype == half
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.cuda.is_initialized()


def test_refusals_are_errors_of_the_regions_with_autocast():
    with FakeDevice(A100)():
        sigmoid, truth = torch.rand(8, requires_grad=True), torch.rand(8)
        with torch.autocast("cpu", BF16):
            with pytest.raises(AutocastRefusalError, match="use nn") as raised:
                nn.BCELoss()(sigmoid, truth)
            assert isinstance(raised.value, RuntimeError), "as torch's own is"
            with torch.autocast("cpu", enabled=False):
                assert F.binary_cross_entropy(sigmoid, truth).dtype == FP32
            assert torch.norm_except_dim(torch.randn(4, 8, dtype=BF16), 2, 0).dtype == FP32, "as in weight_norm"


@pytest.mark.parametrize(("cached", "num_casts"), [(True, 1), (False, 2)])
def test_a_weight_is_cast_once_with_a_cache(cached, num_casts):
    with FakeDevice(A100)(), torch.autocast("cpu", BF16, cache_enabled=cached):
        weight = nn.Parameter(torch.randn(4, 4))
        rows = [torch.randn(2, 4) @ weight for _ in range(2)]
        casts = {row.grad_fn.next_functions[1][0] for row in rows}
        assert [cast.name() for cast in casts] == ["ToCopyBackward0"] * num_casts
        assert {row.dtype for row in rows} == {BF16}


PLACES = {
    "WithAutocastable": [("autocastable", BF16), ("autocastable, backward", BF16)],
    "WithFloat32": [("float32", FP32), ("float32, backward", FP32)],
    "Decorated": [("decorated", BF16)],
    "DecoratedOff": [("decorated, off", FP32)],
    "Region": [("before", BF16), ("region", FP32), ("again", FP16)],
}
WITHOUT = {"WithAutocastable": [(place, FP32) for place, _ in PLACES["WithAutocastable"]]}
WITHOUT["Region"] = [("before", FP32), *PLACES["Region"][1:]]
EXPECTED = [(name, mode, of[name]) for mode, of in (("amp_bf16", PLACES), ("fp32", PLACES | WITHOUT)) for name in of]
# Where CUDA is missing, a decorator that names it is off from the user's import on.
IN_PREDICTIONS = [case for case in EXPECTED if torch.cuda.is_available() or case[0] != "Decorated"]


@pytest.mark.parametrize(("name", "mode", "places"), IN_PREDICTIONS)
def test_a_prediction_has_the_dtypes_of_cuda(name, mode, places, seen):
    named = predicted(*own(f"autocast_users.ON_CUDA.{name}"), f"precision={mode}", target=A100)
    assert seen == places
    if mode == "amp_bf16":
        # `"cuda" if torch.cuda.is_available() else "cpu"` gives cpu on the machine that predicts, and means the target.
        asked = predicted(*own(f"autocast_users.HERE.{name}"), f"precision={mode}", target=A100)
        assert named.peak() == asked.peak()
        assert named.at(named.end_of_forward) == asked.at(asked.end_of_forward)


@pytest.mark.parametrize("mode", ["amp_bf16", "amp_fp16"])
def test_modules_in_float32_are_so_on_cuda(mode):
    arms = (mode,), (mode, "precision.fp32_modules=[blocks]"), ("fp32",)
    steps = [predicted(*MLP, f"precision={arm}", *more, target=A100) for arm, *more in arms]
    plain, covered, whole = (step.at(step.end_of_forward)["activations"] for step in steps)
    assert plain < whole < covered, "the head, outside, takes a copy of its inputs in half precision"


def test_torch_is_restored_afterwards():
    names = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")

    def state():
        functions = [getattr(torch, name) for name in names], torch.autocast.__enter__
        return functions, torch.get_autocast_dtype("cpu"), [torch.is_autocast_enabled(d) for d in ("cuda", "cpu")]

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
    assert before[2] == [False, False]
