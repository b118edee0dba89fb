"""`ampsweep predict --calibrate`: this machine is measured, and its trainings are predicted by that."""

import json
import statistics
from copy import deepcopy
from time import perf_counter

import pytest
import steps
import torch
from devices import CUDA

from ampsweep.commands.main import main
from ampsweep.predict import calibrations, device_calibration
from ampsweep.predict.calibration_programs import checks, programs
from ampsweep.predict.run_prediction import predict_run

WIDE = (*steps.MLP[:1], "model.hidden_size=384", "data=digits", "data.batch_size=128")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def quick(monkeypatch):
    """Calibrate by four of the dense programs, for three seconds."""
    dense = [*programs()][-5:-1]
    monkeypatch.setattr(device_calibration, "_SECONDS", 3.0)
    monkeypatch.setattr(device_calibration, "programs", lambda: deepcopy(dense))
    monkeypatch.setattr(device_calibration, "checks", lambda: [*checks()][-1:])


def calibrated(capsys, *arguments):
    assert main(["predict", "--calibrate", *arguments, "format=json"]) == 0
    return json.loads(capsys.readouterr().out)


def measured_ms(*overrides, device=steps.CPU, num_steps=20):
    _, trainer, built = steps.assembled(*overrides, device=device)
    times = []
    with built.precision.flags():
        for _ in range(num_steps):
            began = perf_counter()
            trainer.train_step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(1e3 * (perf_counter() - began))
    return statistics.median(times[num_steps // 2 :])


@pytest.mark.usefixtures("quick")
def test_a_training_on_a_calibrated_cpu_takes_about_as_long_as_predicted(capsys, own_cache):
    config = steps.composed(*WIDE, *steps.ON_CPU)
    assert predict_run(config, steps.CPU).step_ms is None, "not calibrated"
    found = calibrated(capsys, "device=cpu")
    assert [*own_cache.rglob("*.json")] == [calibrations.calibration_file(found["device"]["name"])]
    predicted = predict_run(config, steps.CPU)
    assert predicted.step_ms_low < predicted.step_ms < predicted.step_ms_high
    assert predicted.least_ms is None, "no data sheet tells the peaks of a CPU"
    assert 1 / 3 < predicted.step_ms / measured_ms(*WIDE) < 3, "on a machine that may do other things meanwhile"


@pytest.mark.usefixtures("quick")
def test_a_dtype_that_was_not_measured_is_not_predicted(capsys):
    calibrated(capsys, "device=cpu")
    speeds = ("predict.gpus=[cpu]", "precision=fp32,amp_bf16,amp_fp16", "format=json")
    assert main(["predict", "-m", *WIDE, *steps.ON_CPU, *speeds]) == 0
    (workload,) = json.loads(capsys.readouterr().out)["workloads"]
    assert "was not calibrated in float16" in json.dumps(workload)
    assert predict_run(steps.composed(*WIDE, "precision=amp_fp16"), steps.CPU).step_ms is None


def test_what_cannot_be_used_is_refused(capsys, own_cache):
    assert main(["predict", "--calibrate", "model=gpt_tiny"]) == 2
    assert "model=gpt_tiny has no effect" in capsys.readouterr().err
    assert main(["predict", *WIDE, "predict.gpus=[cpu]"]) == 2
    assert "`ampsweep predict --calibrate device=cpu` measures it" in capsys.readouterr().err
    file = calibrations.calibration_file(device_calibration.device_here(steps.CPU).name)
    file.parent.mkdir(parents=True)
    file.write_text("{")
    assert main(["predict", *WIDE, "predict.gpus=[cpu]"]) == 2
    assert "writes it anew" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=CUDA) for mode in ("fp32", "amp_fp16")])
def test_a_training_on_a_calibrated_gpu_takes_about_as_long_as_predicted(mode, capsys):
    calibrated(capsys, "device=cuda")
    overrides = (*steps.GPT[:1], "data.batch_size=16", "data.seq_len=256", f"precision={mode}", "device=cuda")
    predicted = predict_run(steps.composed(*overrides), torch.device("cuda"))
    assert predicted.step_ms / measured_ms(*overrides, device=torch.device("cuda")) == pytest.approx(1, abs=0.3)
