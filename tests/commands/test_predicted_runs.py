"""Beside what a run measured its record has what was predicted for it; what cannot fit is said before it starts."""

import json

import pytest
from command_line import all_runs, only_run, only_sweep

SMALL = ("model=mlp_small", "device=cpu", "tracking=disabled", "trainer.log_every=2", "trainer.steps=6")
SYNTHETIC = ("data=synthetic", "data.in_features=32", "data.out_features=32", "data.num_batches=1")
TOO_LARGE = (*SMALL, *SYNTHETIC, "data.batch_size=400", "trainer.memory_limit_gib=0.002")


def test_a_run_has_its_prediction_in_its_record(train):
    assert train(*SMALL, "precision=amp_bf16").code == 0
    record = only_run().record
    assert record.prediction.target == "cpu"
    assert record.prediction.peak == record.memory.peak
    assert record.prediction.measured_bytes == record.memory.peak_bytes
    assert record.prediction.error_pct == 0


def test_seeds_of_a_sweep_share_one_and_the_report_shows_it(train):
    ended = train("-m", *SMALL, "precision=fp32,tf32", "seed=0,1")
    assert ended.code == 0
    predicted = {}
    for run in all_runs():
        predicted.setdefault(run.record.arm, []).append(run.record.prediction)
    assert predicted["tf32"] == [None, None], "nothing was measured"
    one, other = predicted["fp32"]
    assert one == other
    assert one.error_pct == 0
    sweep = only_sweep()
    comparison = json.loads((sweep / "comparison.json").read_text())
    arms = {arm["arm"]: arm for arm in comparison["workloads"][0]["arms"]}
    assert arms["fp32"]["predicted_memory_bytes"] == one.peak_bytes
    assert arms["fp32"]["prediction_error_pct"] == 0
    assert arms["tf32"]["predicted_memory_bytes"] is None
    assert "predicted" in ended.out
    assert "(+0.00%)" in ended.out
    assert "- **predicted** peak memory of fp32 " in (sweep / "comparison.md").read_text()
    assert "fp32 (predicted)" in (sweep / "comparison.html").read_text()


@pytest.mark.parametrize("mode", [(), ("-m",)], ids=["alone", "in a sweep"])
def test_what_cannot_fit_is_said_and_tried(train, mode):
    ended = train(*mode, *TOO_LARGE)
    assert ended.code == 0
    (line,) = [line for line in ended.err.splitlines() if "predicted not to fit" in line]
    assert line.startswith("fp32 with batch 400 is predicted not to fit: it takes 2.")
    assert line.endswith("trainer.memory_limit_gib leaves 2.05 MiB")
    record = only_run().record
    assert record.status == "oom"
    assert record.prediction.peak_bytes > record.oom.limit_bytes


OWN_OPERATOR = """
import torch
from torch import nn
@torch.library.custom_op("mine::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
same.register_fake(torch.empty_like)
same.register_autograd(lambda _, gradient: gradient)
class Net(nn.Linear):
    def __init__(self):
        super().__init__(32, 32)
    def forward(self, inputs):
        return same(super().forward(inputs))
"""


def test_a_warning_names_operators_that_it_does_not_vouch_for(train, tmp_path, monkeypatch):
    (tmp_path / "own_operator.py").write_text(OWN_OPERATOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ("model=custom", "model._target_=own_operator.Net", *SMALL[1:], *SYNTHETIC, "data.batch_size=4000")
    ended = train(*own, "trainer.memory_limit_gib=0.002")
    (line,) = [line for line in ended.err.splitlines() if "predicted not to fit" in line]
    assert line.startswith("fp32 with batch 4000 is predicted not to fit")
    assert line.endswith("leaves 2.05 MiB; not vouched for: the memory of mine.same")


def test_predictions_can_be_left_out(train):
    ended = train(*TOO_LARGE, "predict.with_runs=false")
    assert "predicted" not in ended.err
    assert only_run().record.prediction is None


def test_a_process_that_dies_of_its_prediction_has_trained(train, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(
        "import os, signal\n"
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(32, 32)\n"
        "    def forward(self, inputs):\n"
        "        if type(inputs).__name__ == 'FakeTensor':\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().forward(inputs)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ("model=custom", "model._target_=deadly.Net", *SMALL[1:], *SYNTHETIC, "data.batch_size=8")
    assert train("-m", *own).code == 0
    record = only_run().record
    assert (record.status, record.error) == ("completed", None)
    assert record.prediction is None


def test_a_model_that_cannot_be_predicted_trains_all_the_same(train, tmp_path, monkeypatch):
    (tmp_path / "by_value.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(32, 32)\n"
        "    def forward(self, inputs):\n"
        "        return super().forward(inputs) if inputs.sum() > 0 else super().forward(-inputs)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ("model=custom", "model._target_=by_value.Net", *SMALL[1:], *SYNTHETIC, "data.batch_size=8")
    assert train(*own).code == 0
    record = only_run().record
    assert record.status == "completed"
    assert "depends on values" in record.prediction.refused
