"""Custom functions, decorators and regions that name CUDA act in a prediction for CUDA as they do there."""

import pytest
import torch
from devices import needs_cuda
from steps import composed, measured, predicted

from ampsweep.precision import Precision
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.target_device import TargetDevice
from ampsweep.training.components.built import build_data
from ampsweep.training.components.instantiate import build_component

pytestmark = pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")

A100 = TargetDevice("cuda", (8, 0))
FULL, HALF, FP16 = torch.float32, torch.bfloat16, torch.float16
AMP_BF16 = {
    "WithAutocastable": [("autocastable", HALF), ("autocastable, backward", HALF)],
    "WithFloat32": [("float32", FULL), ("float32, backward", FULL)],
    "Decorated": [("decorated", HALF)],
    "DecoratedOff": [("decorated, off", FULL)],
    "Region": [("before", HALF), ("region", FULL), ("again", FP16)],
}
FP32 = {name: [(place, FULL) for place, _ in places] for name, places in AMP_BF16.items()} | {
    "Decorated": [("decorated", HALF)],
    "Region": [("before", FULL), ("region", FULL), ("again", FP16)],
}
EXPECTED = [*((name, "amp_bf16", places) for name, places in AMP_BF16.items())]
EXPECTED += [(name, "fp32", places) for name, places in FP32.items()]
IN_PREDICTIONS = [one for one in EXPECTED if torch.cuda.is_available() or one[0] != "Decorated"]
"""Where CUDA is missing, a decorator that names it is off from the user's import on."""


def own(name):
    return ("model=custom", f"model._target_=autocast_users.{name}", "data=digits", "data.batch_size=16")


@pytest.mark.parametrize(("name", "mode", "places"), IN_PREDICTIONS)
def test_results_have_the_dtypes_that_they_have_on_cuda(name, mode, places, seen):
    predicted(*own(f"ON_CUDA.{name}"), f"precision={mode}", target=A100)
    assert seen == places


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


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16"])
@pytest.mark.parametrize("name", {name: None for name, _, _ in IN_PREDICTIONS})
def test_code_that_asks_for_the_device_here_means_the_target(name, mode):
    """`"cuda" if torch.cuda.is_available() else "cpu"` gives cpu on the machine that predicts."""
    named, asked = (
        predicted(*own(f"{group}.{name}"), f"precision={mode}", target=A100) for group in ("ON_CUDA", "HERE")
    )
    assert named.peak() == asked.peak()
    assert named.at(named.end_of_forward) == asked.at(asked.end_of_forward)


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16"])
@pytest.mark.parametrize("name", [*(f"HERE.{name}" for name in AMP_BF16), "ON_CUDA.Region", "ON_CUDA.Decorated"])
def test_for_the_cpu_the_prediction_is_exact(name, mode):
    truth, timeline = (do(*own(name), f"precision={mode}") for do in (measured, predicted))
    peak = timeline.peak()
    assert (peak.num_bytes, peak.categories) == (truth.peak_bytes, truth.peak)
    assert timeline.at(timeline.end_of_forward) == truth.end_of_forward


@pytest.mark.parametrize("mode", ["amp_bf16", "amp_fp16"])
def test_modules_in_float32_are_so_on_cuda(mode):
    islands = ("model=mlp_small", "data=digits", "precision.fp32_modules=[blocks]")
    plain, covered, whole = (
        predicted(*islands[:2], f"precision={arm}", *more, target=A100)
        for arm, more in ((mode, ()), (mode, islands[2:]), ("fp32", ()))
    )
    kept = [timeline.at(timeline.end_of_forward)["activations"] for timeline in (plain, covered, whole)]
    assert kept[0] < kept[2] < kept[1], "the head, outside, takes a copy of its inputs in half precision"


def test_torch_is_itself_again_afterwards():
    names = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")
    before = [getattr(torch, name) for name in names], torch.autocast.__enter__, torch.get_autocast_dtype("cpu")
    with FakeDevice(A100)():
        assert torch.get_autocast_dtype("cuda") == FP16, "CUDA's default"
        with torch.autocast("cuda", HALF):
            assert torch.is_autocast_enabled("cuda")
            assert torch.is_autocast_enabled(), "without a type of device CUDA is meant"
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == HALF
            with torch.autocast("cuda"):
                assert torch.get_autocast_dtype("cuda") == HALF, "of the region around"
        with torch.autocast("cuda"):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == FP16
    assert (
        [getattr(torch, name) for name in names],
        torch.autocast.__enter__,
        torch.get_autocast_dtype("cpu"),
    ) == before
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.is_autocast_enabled("cpu")
