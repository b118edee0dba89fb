"""Beside its measured memory a record has the predicted one; a run that cannot fit is reported before it starts."""

import json

import pytest
from command_line import only_run
from recorded_sweeps import SYNTHETIC

SMALL = ("model=mlp_small", "device=cpu", "tracking=disabled", "trainer.log_every=2", "trainer.steps=6")
TOO_LARGE = (*SMALL, *SYNTHETIC, "data.batch_size=400", "trainer.memory_limit_gib=0.002")


def test_the_prediction_of_each_arm_is_recorded_and_compared(recorded):
    swept = recorded("offline")
    comparison = json.loads((swept.directory / "comparison.json").read_text())
    arms = {arm["arm"]: arm for arm in comparison["workloads"][0]["arms"]}
    for run in swept.runs:
        record, arm = run.record, arms[run.record.arm]
        if record.status == "unsupported":
            assert record.prediction is None, "nothing was measured"
            assert (arm["predicted_memory_bytes"], arm["prediction_error_pct"]) == (None, None)
            continue
        assert record.prediction.target == "cpu"
        assert record.prediction.peak == record.memory.peak
        assert record.prediction.measured_bytes == record.memory.peak_bytes
        assert record.prediction.error_pct == arm["prediction_error_pct"] == 0
        assert arm["predicted_memory_bytes"] == record.prediction.peak_bytes
    assert "predicted" in swept.ended.out
    assert "(+0.00%)" in swept.ended.out
    assert "- **predicted** peak memory of fp32 " in (swept.directory / "comparison.md").read_text()
    assert "fp32 (predicted)" in (swept.directory / "comparison.html").read_text()


def test_runs_that_cannot_fit_are_reported_and_tried(train):
    for mode in ((), ("-m", "seed=0,1")):
        ended = train(*mode, *TOO_LARGE, f"output_dir=tried{len(mode)}")
        assert ended.code == 0
        line, *_ = [line for line in ended.err.splitlines() if "predicted not to fit" in line]
        assert line.startswith("fp32 with batch 400 is predicted not to fit: it takes 2.")
        assert line.endswith("trainer.memory_limit_gib leaves 2.05 MiB")
    record = only_run("tried0").record
    assert record.status == "oom"
    assert record.prediction.peak_bytes > record.oom.limit_bytes
    ended = train(*TOO_LARGE, "predict.with_runs=false", "output_dir=unpredicted")
    assert "predicted" not in ended.err
    assert only_run("unpredicted").record.prediction is None


OWN = """
import os, signal
import torch
from torch import nn

@torch.library.custom_op("mine::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
same.register_fake(torch.empty_like)
same.register_autograd(lambda _, gradient: gradient)

class Operator(nn.Linear):
    def __init__(self):
        super().__init__(32, 32)
    def forward(self, inputs):
        return same(super().forward(inputs))

class Deadly(Operator):
    def forward(self, inputs):
        if type(inputs).__name__ == 'FakeTensor':
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.Linear.forward(self, inputs)

class ByValue(Operator):
    def forward(self, inputs):
        return nn.Linear.forward(self, inputs if inputs.sum() > 0 else -inputs)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """`own(name)`: arguments of a training of a model above."""
    (tmp_path / "unpredictable.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name: ("model=custom", f"model._target_=unpredictable.{name}", *SMALL[1:], *SYNTHETIC)


@pytest.mark.nightly
def test_a_model_that_cannot_be_predicted_trains_all_the_same(own, train):
    assert train("-m", *own("Deadly"), "data.batch_size=8", "output_dir=deadly").code == 0
    record = only_run("deadly").record
    assert (record.status, record.error, record.prediction) == ("completed", None, None)
    assert train(*own("ByValue"), "data.batch_size=8", "output_dir=by_value").code == 0
    record = only_run("by_value").record
    assert record.status == "completed"
    assert "depends on values" in record.prediction.refused
