"""The table of published speeds, and the workloads that are rebuilt for it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from published.errors import CLASSES, Prediction, spreads
from published.fit import START, fit
from published.measured_rows import Row, pairs, predict
from published.traces import rows as rows_of_table
from published.training_step import trace
from published.workloads import WORKLOADS

from ampsweep.speed.devices import device_named
from ampsweep.speed.predicted_range import NINE_OF_TEN
from ampsweep.speed.step_time import StepWork

MILLIONS = {
    "bert_large_language_512": 336.2,
    "gpt2": 124.4,
    "gpt2_large": 774.0,
    "opt_1_3b": 1315.8,
    "resnet50": 25.6,
    "resnext101_32x8d": 88.8,
    "se_resnext101_32x4d": 49.0,
    "densenet161": 28.7,
    "vgg19_bn": 143.7,
    "squeezenet1_0": 1.2,
    "mobilenet_v2": 3.5,
    "mnasnet1_0": 4.4,
    "shufflenet_v2_x1_0": 2.3,
    "vit_base_patch16": 86.6,
}
"""Parameters as the papers, torchvision and Hugging Face give them."""


@pytest.mark.parametrize("name", MILLIONS)
def test_a_rebuilt_model_has_the_size_of_the_original(name: str):
    with torch.device("meta"):
        model = WORKLOADS[name].model()
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == MILLIONS[name]


def test_each_row_has_a_workload_a_device_and_the_time_of_its_rate():
    for row in rows_of_table():
        name, *options = row["recipe"].split()
        assert WORKLOADS[name].family == row["family"]
        device_named(row["gpu"])
        is_half = row["precision"].startswith(("amp_", "pure_"))
        assert is_half == bool({"autocast", "o2", "half"} & {*options})
        if row["metric"] == "ms/step":
            assert row["step_ms"] == f"{float(row['value']):.5g}"
        else:
            counted = int(row["batch"]) * (4 if "x4" in options else 1) * (1024 if row["metric"] == "tokens/s" else 1)
            assert row["step_ms"] == f"{1e3 * counted / float(row['value']):.5g}"


def test_a_step_does_what_its_recipe_names():
    plain = trace("resnet18 sgd sync", 2, torch.float32)
    forward, backward = (sum(work.flops for work in plain if work.phase == phase) for phase in ("forward", "backward"))
    assert forward / 2 / 2 == pytest.approx(1.81e9, rel=0.01)  # multiply-adds of an image
    assert 1.9 * forward < backward < 2 * forward  # the images need no gradient
    assert [work.kind for work in plain if work.phase == "update"].count("elementwise") == 4 * 62  # of each parameter
    assert [place for place, work in enumerate(plain) if work.kind == "wait"] == [len(plain) - 1]

    masters = trace("resnet18 sgd o2 nhwc", 2, torch.float16)
    assert {work.dtype for work in masters if work.flops} == {"float16"}
    assert {work.dtype for work in masters if work.phase == "update" and work.kind == "elementwise"} == {"float32"}
    assert not any(work.is_strided for work in masters if work.kind == "convolution")

    scaled = trace("resnet18 sgd autocast", 2, torch.float16)
    assert [work.kind for work in scaled].count("wait") == 1  # for what overflowed
    assert not [work for work in trace("resnet18 autocast", 2, torch.float16) if work.phase == "update"]


def fake_row(work: StepWork, batch: int, precision: str, step_ms: float, gpu: str = "V100-SXM2-32GB") -> Row:
    names = ("source", "framework", "workload", "compiled", "doubt", "family")
    table = dict.fromkeys(names, "") | {"recipe": "resnet50", "family": "resnet", "gpu": gpu, "batch": str(batch)}
    return Row(table | {"precision": precision, "step_ms": str(step_ms)}, device_named(gpu), work)


def test_a_fit_finds_what_explains_the_measurements():
    dtypes = {"fp32": torch.float32, "amp_fp16": torch.float16}
    works = {
        (batch, precision): StepWork(trace("resnet18 sgd autocast nhwc", batch, dtype))
        for precision, dtype in dtypes.items()
        for batch in (256, 512)
    }
    truth = replace(START, bandwidth_share=0.6, float32_share=0.7)
    rows = [
        fake_row(work, batch, precision, work.on(device_named("V100-SXM2-32GB"), parameters=truth).step_ms.expected)
        for (batch, precision), work in works.items()
    ]
    assert len(pairs(rows)) == 4
    before, after = (predict(rows, parameters) for parameters in (START, fit(rows, START, 6)))
    assert max(abs(one.error) for one in after) < 0.03 < min(abs(one.error) for one in before)


def test_spreads_hold_nine_of_ten_errors():
    random = np.random.default_rng(0)
    table = {"step_ms": "1.0", "doubt": ""}
    made = [
        Prediction(table, True, float(np.exp(error)), {name: float(name == kind) for name in CLASSES})
        for kind, sigma in (("moving", 0.05), ("launching", 0.3))
        for error in random.normal(0, sigma, 400)
    ]
    found = spreads(made, made, made, [(0, 1)])
    inside = [abs(one.error) <= NINE_OF_TEN * found.step(one) for one in made]
    assert (0.85 < np.mean(inside[:400]) < 0.95, 0.85 < np.mean(inside[400:]) < 0.95) == (True, True)
    assert found.of["unknown chip"] == 0.0
