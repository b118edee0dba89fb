"""`ampsweep predict`: its answers, its JSON, its records, and what it refuses."""

import json
from unittest.mock import Mock

import pytest
import steps
import torch

from ampsweep.commands.main import main
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.observe.host_memory import peak_resident_bytes
from ampsweep.predict import run_prediction
from ampsweep.predict.run_prediction import predict_point
from ampsweep.predict.target_device import target_of
from ampsweep.records import find_records
from ampsweep.records.sections import StepPrediction
from ampsweep.speed.devices import DEVICES

SMALL = (*steps.REGRESSION, "model.hidden_size=64", "data.in_features=32", "data.out_features=16")
GPT = (*steps.GPT, "predict.target=cuda")


@pytest.fixture
def predict(capsys):
    def run(*overrides):
        code = main(["predict", *overrides])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def workloads(predict):
    def run(*overrides):
        code, out, err = predict(*overrides, "format=json")
        assert (code, err) == (0, "")
        return json.loads(out)["workloads"]

    return run


def test_every_mode_of_a_training_in_one_json_object(workloads, monkeypatch):
    # A worker, which is forked, cannot ask a GPU that its parent has used for its random state.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: pytest.fail("asked"))
    (workload,) = workloads(*SMALL, "predict.target=cuda", "predict.memory_gib=0.1")
    arms = {mode["arm"]: mode for mode in workload["modes"]}
    assert [*arms, *workload["unsupported"]] == [*PRECISION_MODES]
    assert {*workload["unsupported"]} <= {"fp8_tensorwise", "fp8_rowwise"}, "its layers are too small"
    assert (workload["target"], workload["baseline"]) == ("cuda", "fp32")
    for name, mode in arms.items():
        assert sum(mode["peak"].values()) == mode["peak_bytes"]
        assert mode["curve"][0]["batch_size"] == 2
        assert name.startswith("fp8") or mode["largest_batch"] > 0, "what is emulated has bytes of its own"
        assert mode["peak_bytes"] < mode["allocated_bytes"] <= mode["reserved_bytes"]
    assert arms["fp32"]["peak"]["autocast_weights"] == 0 < arms["amp_bf16"]["peak"]["activations"]
    assert workload["sentences"][0].startswith("On 0.1 GiB: fp32 up to batch ")


def test_tables_sentences_and_records(predict, tmp_path):
    asked = ("predict.memory_gib=0.1", "predict.write=true", f"output_dir={tmp_path}", "precision=fp32,tf32,amp_bf16")
    code, out, _ = predict("-m", *SMALL, "predict.target=cpu", *asked)
    assert code == 0
    for sentence in ("predicted for cpu", "On 0.1 GiB: fp32 up to batch", "amp_bf16 saves memory from batch"):
        assert sentence in out
    assert "tf32  tf32 needs an NVIDIA GPU" in out
    found = find_records(tmp_path).records
    assert str(found[0][0].parent) in out.replace("\n", "")
    assert {record.arm for _, record in found} == {"fp32", "amp_bf16"}

    asked = ("predict.target=cuda", "predict.write=true", f"output_dir={tmp_path / 'cuda'}", "precision=amp_bf16")
    assert predict(*SMALL, *asked)[0] == 0
    ((_, record),) = find_records(tmp_path / "cuda").records
    memory, prediction = record.memory, record.prediction
    assert (record.kind, record.status, record.identity.device_name) == ("predicted", "completed", "cuda 8.0")
    assert sum(memory.peak.values()) == memory.peak_bytes
    assert record.summary["memory/peak_allocated_gib"] == memory.allocator_peak_bytes / 2**30
    assert (prediction.peak, prediction.peak_bytes_by_batch_size["16"]) == (memory.peak, memory.allocator_peak_bytes)


def test_arms_are_those_of_the_chosen_precisions_and_models(workloads):
    chosen = ("precision=amp_bf16", "precision.cache_enabled=false", "predict.target=cpu", "predict.memory_gib=1e6")
    (workload,) = workloads(*SMALL, *chosen)
    assert [mode["arm"] for mode in workload["modes"]] == ["amp_bf16+cache_enabled=false"]
    assert workload["baseline"] is None
    assert workload["sentences"] == ["On 1e+06 GiB: amp_bf16+cache_enabled=false beyond batch 1048575."]
    small, large = workloads("-m", *SMALL, "seed=0,1", "precision=fp32,amp_bf16", "model.num_layers=1,2")
    assert [[mode["arm"] for mode in workload["modes"]] for workload in (small, large)] == [["fp32", "amp_bf16"]] * 2
    assert small["modes"][0]["num_parameters"] < large["modes"][0]["num_parameters"]


def test_modes_that_the_target_cannot_run_have_the_reason(workloads):
    without = ["tf32", "amp_bf16", "pure_bf16", "bf16_sr", "master_bf16", "fp8_tensorwise", "fp8_rowwise"]
    asked = ("predict.target=cuda", "predict.capability=7.5", f"precision=amp_fp16,{','.join(without)}")
    (workload,) = workloads("-m", *SMALL, *asked)
    assert [*workload["unsupported"]] == without
    assert workload["unsupported"]["amp_bf16"] == "cuda 7.5 has no bfloat16 arithmetic; use amp_fp16"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        *((f"predict.memory_gib={gib}", f"predict.memory_gib={gib}: must be ") for gib in ("0", "nan", "1e+300")),
        ("predict.batch_sizes=[4,0]", "predict.batch_sizes=0: must be greater than 0"),
        ("predict.target=tpu", "predict.target=tpu: allowed are auto, cpu, cuda"),
        ("precision=fp32,amp_bf16", "precision=fp32,amp_bf16 names several values; add -m"),
        ("model.out_features=8", "the model's outputs have shape (16, 8), the targets (16, 16)"),
        ("parallel=ddp device=cpu", "error: parallel=ddp on a CPU needs parallel.num_processes"),
    ],
)
def test_wrong_input_is_one_sentence(predict, override, sentence):
    code, out, err = predict(*SMALL, "predict.target=cuda", "precision=fp32", *override.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_a_model_that_cannot_be_traced_is_refused(predict, workloads):
    def refusal(model, *overrides):
        code, out, err = predict(*steps.own(f"predicted_models.{model}"), *overrides)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        return err

    complaint = "model=selecting: aten.nonzero in between (Between) depends on values"
    assert complaint in refusal("selecting", "precision=fp32")
    complaint = "error: model=branching: aten._local_scalar_dense in between (Between) depends on values"
    both = ("-m", "precision=fp32", "format=json")
    assert refusal("refused,predicted_models.branching", *both).startswith(complaint), "the first refusal ends it"
    complaint = "CUDA's autocast refuses binary_cross_entropy; use nn.BCEWithLogitsLoss"
    asked = ("predict.target=cuda", "precision=amp_bf16")
    assert refusal("refused", *asked).startswith(f"error: model=refused: {complaint}")

    refused = steps.own("predicted_models.refused")
    (workload,) = workloads("-m", *refused, "predict.target=cuda", "precision=fp32,amp_bf16,pure_bf16,amp_fp16")
    assert [mode["arm"] for mode in workload["modes"]] == ["fp32", "pure_bf16"]
    assert {*workload["unsupported"]} == {"amp_bf16", "amp_fp16"}
    assert workload["unsupported"]["amp_bf16"].startswith(complaint)
    workloads(*refused, "predict.target=cpu", "precision=amp_bf16")  # a CPU casts it


def test_the_memory_of_a_rank_and_the_fewest_ranks_that_fit(workloads):
    asked = ("parallel=fsdp2", "parallel.num_processes=6", "predict.memory_gib=0.04")
    (workload,) = workloads("-m", *GPT, *asked, "precision=fp32,pure_bf16")
    fewest = {mode["arm"]: mode["smallest_world_size"] for mode in workload["modes"]}
    for mode in workload["modes"]:
        by_number = mode["by_world_size"]
        tried = {number for number in (2, 4, 8, 16, 32) if number <= fewest[mode["arm"]]}
        assert [*by_number] == [str(number) for number in sorted({6, *tried})]
        assert (mode["parallel"], mode["world_size"], mode["largest_batch"]) == ("fsdp2", 6, None)
        assert by_number["6"] == {"batch_size": 4, **{key: mode[key] for key in by_number["6"] if key != "batch_size"}}
        assert by_number["2"]["peak"]["parameters"] > 2.9 * by_number["6"]["peak"]["parameters"]
        assert mode["end_of_forward"]["communication"] > 0
    assert workload["sentences"][0].startswith("With 0.04 GiB on each GPU, of 2, 4, 8 and so on: fp32 from ")
    assert f"fp32 from {fewest['fp32']} on" in workload["sentences"][0]


def test_replicas_need_the_same_on_any_number_of_gpus(predict, workloads):
    asked = ("parallel=ddp", "parallel.num_processes=4", "predict.memory_gib=0.005", "precision=pure_bf16")
    printed = " ".join(predict(*GPT, *asked)[1].split())
    assert "ddp on 4 ranks: predicted" in printed
    assert "With 0.005 GiB on each GPU, of 2, 4, 8 and so on: pure_bf16 on no number of them." in printed
    ((mode,),) = (workload["modes"] for workload in workloads(*GPT, *asked))
    assert [*mode["by_world_size"]] == ["4"]

    asked = ("parallel=fsdp2", "parallel.num_processes=2", "precision=amp_bf16")
    (workload,) = workloads("-m", *GPT, *asked, "parallel.mixed_precision=policy,autocast")
    policy, autocast = workload["modes"]
    assert [policy["arm"], autocast["arm"]] == ["amp_bf16", "amp_bf16+mixed_precision=autocast"]
    assert policy["end_of_forward"]["autocast_weights"] == 0 < autocast["end_of_forward"]["autocast_weights"]


@pytest.mark.nightly
def test_a_large_model_is_never_allocated(workloads):
    before, num_parameters = peak_resident_bytes(), 1_557_611_200
    chosen = ("predict.target=cuda", "precision=amp_bf16", "data.batch_size=2", "predict.batch_sizes=[2]")
    ((mode,),) = (workload["modes"] for workload in workloads("model=gpt_xl", *chosen))
    assert mode["num_parameters"] == num_parameters
    assert mode["peak_bytes"] > 16 * num_parameters
    assert peak_resident_bytes() - before < 4 * num_parameters


@pytest.mark.parametrize(
    ("model", "overrides", "reason"),
    [
        ("Recurrent", (*steps.TEXT, "task=language_modeling"), "a recurrent layer is predicted on a CPU only"),
        ("refused", ("data=digits", "precision=amp_bf16"), "CUDA's autocast refuses binary_cross_entropy"),
        ("Mlp", ("data=digits", "precision=fp8_tensorwise"), "A100-80 has no float8 kernels for fp8_tensorwise"),
    ],
)
def test_a_run_on_a_cpu_has_the_reason_why_nothing_is_known_of_a_gpu(model, overrides, reason, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = predict_point(steps.composed(*steps.own(f"predicted_models.{model}", overrides)), steps.CPU)
    assert (found.refused, found.target) == (None, "cpu")
    assert (found.on_cuda.target, found.on_cuda.peak_bytes) == ("A100-80", None)
    assert reason in found.on_cuda.refused


@pytest.mark.parametrize(
    ("mode", "tflops", "bytes_of_weight"),
    [
        ("fp32", 66.9, 4 + 8),  # the optimizer reads the gradient, and reads and writes the weight
        ("amp_fp16", 989.4, 4 + 2 + 2 + 4 + 8 + 4 + 8),  # casts there and back, unscaling, the optimizer
        ("pure_bf16", 989.4, 2 + 4),
    ],
)
def test_pytorchs_amp_recipe_is_bound_by_its_arithmetic_and_its_bytes(mode, tflops, bytes_of_weight, monkeypatch):
    monkeypatch.setattr(run_prediction, "_cuda_target", lambda: target_of(DEVICES["H100"]))
    width, batch_size, num_layers = 4096, 512, 3
    sizes = (f"data.in_features={width}", f"data.out_features={width}", f"model.hidden_size={width}")
    recipe = ("model=mlp_recipe", f"data.batch_size={batch_size}", "optimizer=sgd", f"precision={mode}", *sizes)
    found = run_prediction.predict_on_cuda(steps.composed(*recipe))
    computing_ms = 2 * batch_size * width**2 * (3 * num_layers - 1) / 1e9 / tflops  # no gradient of the inputs
    moving_ms = bytes_of_weight * num_layers * (width**2 + width) / 3350e6
    assert 1.0 < found.least_ms / (computing_ms + moving_ms) < 1.2, "with passes over activations, many from L2"
    assert found.least_ms <= found.step_ms_low


def test_a_gpu_that_does_not_answer_leaves_a_run_on_a_cpu_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", Mock(side_effect=RuntimeError("CUDA error")))
    found = predict_point(steps.composed(*SMALL, "device=cpu"), steps.CPU)
    assert found.peak_bytes > 0
    assert found.on_cuda == StepPrediction(target="cuda", refused="RuntimeError: CUDA error")
