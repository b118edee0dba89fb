"""`ampsweep predict`: its answers, its JSON and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ampsweep
from ampsweep.commands.main import main
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.record import find_records

SMALL = (
    *("model=mlp_recipe", "model.hidden_size=64", "data.in_features=32", "data.out_features=16"),
    *("data.batch_size=8", "data.num_batches=2"),
)
OWN = ("model=custom", "+model.width=8", "data=digits", "data.batch_size=8")


@pytest.fixture
def predict(capsys):
    """Runs the command line; returns its exit code and what it printed."""

    def run(*overrides):
        code = main(["predict", *overrides])
        return code, *capsys.readouterr()

    return run


def test_every_mode_of_a_training_in_one_json_object(predict):
    code, out, err = predict(*SMALL, "predict.target=cuda", "predict.memory_gib=0.1", "format=json")

    (workload,) = json.loads(out)["workloads"]
    assert code == 0
    assert err == ""
    arms = {mode["arm"]: mode for mode in workload["modes"]}
    assert [*arms, *workload["unsupported"]] == [*PRECISION_MODES]
    assert {*workload["unsupported"]} <= {"fp8_tensorwise", "fp8_rowwise"}, "its layers are too small"
    assert workload["target"] == "cuda"
    assert workload["baseline"] == "fp32"
    for name, mode in arms.items():
        assert sum(mode["peak"].values()) == mode["peak_bytes"]
        assert mode["curve"][0]["batch_size"] == 2
        assert name.startswith("fp8") or mode["largest_batch"] > 0, "what is emulated has bytes of its own"
        assert mode["peak_bytes"] < mode["allocated_bytes"] <= mode["reserved_bytes"]
    assert arms["fp32"]["peak"]["autocast_weights"] == 0 < arms["amp_bf16"]["peak"]["activations"]
    assert workload["sentences"][0].startswith("On 0.1 GiB: fp32 up to batch ")


def test_tables_and_sentences_for_people(predict):
    code, out, _ = predict("-m", *SMALL, "predict.target=cpu", "predict.memory_gib=0.1", "precision=fp32,tf32,amp_bf16")
    assert code == 0
    assert "predicted for cpu" in out
    assert "On 0.1 GiB: fp32 up to batch" in out
    assert "tf32  tf32 needs an NVIDIA GPU" in out
    assert "amp_bf16 saves memory from batch" in out


def test_an_answer_that_is_only_the_last_batch_looked_at_says_so(predict):
    _, out, _ = predict(*SMALL, "predict.target=cpu", "predict.memory_gib=1e6", "format=json", "precision=fp32")
    (workload,) = json.loads(out)["workloads"]
    assert workload["sentences"] == ["On 1e+06 GiB: fp32 beyond batch 1048575."]


def test_a_chosen_precision_is_the_only_one(predict):
    _, out, _ = predict(*SMALL, "precision=amp_bf16", "precision.cache_enabled=false", "format=json")
    (workload,) = json.loads(out)["workloads"]
    assert [mode["arm"] for mode in workload["modes"]] == ["amp_bf16+cache_enabled=false"]
    assert workload["baseline"] is None


def test_a_sweep_is_one_workload_per_model_for_all_seeds(predict):
    _, out, _ = predict("-m", *SMALL, "seed=0,1", "precision=fp32,amp_bf16", "model.num_layers=1,2", "format=json")
    workloads = json.loads(out)["workloads"]
    assert [[mode["arm"] for mode in workload["modes"]] for workload in workloads] == [["fp32", "amp_bf16"]] * 2
    assert workloads[0]["modes"][0]["num_parameters"] < workloads[1]["modes"][0]["num_parameters"]


def test_what_the_target_cannot_run_is_said(predict):
    _, out, _ = predict(*SMALL, "predict.target=cuda", "predict.capability=7.5", "format=json")
    (workload,) = json.loads(out)["workloads"]
    without_bfloat16 = {"amp_bf16", "pure_bf16", "bf16_sr", "master_bf16", "fp8_tensorwise", "fp8_rowwise"}
    assert set(workload["unsupported"]) == {"tf32", *without_bfloat16}
    assert workload["unsupported"]["amp_bf16"] == "cuda 7.5 has no bfloat16 arithmetic; use amp_fp16"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("predict.memory_gib=0", "predict.memory_gib=0: must be greater than 0"),
        ("predict.memory_gib=-16", "predict.memory_gib=-16: must be greater than 0"),
        ("predict.memory_gib=nan", "predict.memory_gib=nan: must be a finite number"),
        ("predict.memory_gib=1e300", "predict.memory_gib=1e+300: must be at most 1073741824"),
        ("data.batch_size=0", "data.batch_size=0: must be greater than 0"),
        ("predict.batch_sizes=[4,0]", "predict.batch_sizes=0: must be greater than 0"),
        ("predict.target=tpu", "predict.target=tpu: allowed are auto, cpu, cuda"),
        ("predict.capability=ampere", "predict.capability=ampere: must be two numbers with a dot between"),
        ("predict.target=auto device=mps", "memory is predicted for cpu, cuda, not for mps"),
        ("format=xml", "format=xml: allowed are console, json"),
        ("precision=fp32,amp_bf16", "precision=fp32,amp_bf16 names several values; add -m"),
        ("predict.memory=16", "unknown key predict.memory"),
        ("model.num_layers=0", "model.num_layers=0: must be greater than 0"),
        ("model.out_features=8", "the model's outputs have shape (8, 8), the targets (8, 16)"),
    ],
)
def test_wrong_input_is_one_sentence(predict, override, sentence):
    code, out, err = predict(*SMALL, "predict.target=cuda", *override.split())
    assert code == 2
    assert out == ""
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("Gated", "aten._local_scalar_dense in gate (Gate) depends on values"),
        ("Selecting", "aten.nonzero in Selecting (Selecting) depends on values"),
    ],
)
def test_a_model_that_reads_values_is_named_with_its_operator(predict, model, complaint):
    code, _, err = predict(*OWN, f"model._target_=value_models.{model}")
    assert code == 2
    assert f"model={model}: {complaint}" in err


def test_the_first_workload_that_is_refused_ends_the_command(predict):
    models = "model._target_=value_models.Sigmoid,value_models.Gated"
    code, out, err = predict("-m", *OWN, models, "precision=fp32", "format=json")
    assert (code, out) == (2, "")
    assert err.startswith("error: model=Gated: ")


def test_no_gpu_is_asked_for_its_random_state(predict, monkeypatch):
    """A worker, which is forked, cannot ask one that its parent has used."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: pytest.fail("asked"))
    assert predict(*SMALL)[0] == 0
    for module in Path(ampsweep.__file__).parent.rglob("*.py"):
        assert "fork_rng()" not in module.read_text(), module


REFUSAL = "CUDA's autocast refuses binary_cross_entropy; use nn.BCEWithLogitsLoss"


def test_arms_whose_model_autocast_refuses_are_told(predict):
    model = (*OWN, "model._target_=value_models.Sigmoid")
    code, out, _ = predict(*model, "predict.target=cuda", "format=json")
    (workload,) = json.loads(out)["workloads"]
    assert code == 0
    without_autocast = [mode for mode, settings in PRECISION_MODES.items() if not settings.autocast]
    assert [mode["arm"] for mode in workload["modes"]] == without_autocast
    assert {*workload["unsupported"]} == PRECISION_MODES.keys() - {*without_autocast}
    assert workload["unsupported"]["amp_bf16"].startswith(REFUSAL)

    code, out, err = predict(*model, "predict.target=cuda", "precision=amp_bf16")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: model=Sigmoid: {REFUSAL}")
    assert len(err.splitlines()) == 1

    code, out, _ = predict(*model, "predict.target=cpu", "precision=amp_bf16", "format=json")
    assert code == 0, "a CPU casts it"


def test_records_are_left_where_that_is_asked_for(predict, tmp_path):
    asked = ("predict.target=cuda", "predict.write=true", f"output_dir={tmp_path}")
    code, out, _ = predict("-m", *SMALL, *asked, "precision=fp32,amp_bf16")
    assert code == 0
    found = find_records(tmp_path).records
    assert str(found[0][0].parent) in out.replace("\n", "")
    records = {record.arm: record for _, record in found}
    assert set(records) == {"fp32", "amp_bf16"}
    for record in records.values():
        assert (record.kind, record.status, record.identity.device_name) == ("predicted", "completed", "cuda 8.0")
        assert sum(record.memory.peak.values()) == record.memory.peak_bytes
        assert record.summary["memory/peak_allocated_gib"] == record.memory.allocator_peak_bytes / 2**30
        assert record.prediction.peak == record.memory.peak
        assert record.prediction.peak_bytes_by_batch_size["8"] == record.memory.allocator_peak_bytes


GPT = (
    *("model=gpt_tiny", "data=synthetic_tokens", "data.vocab_size=300", "data.seq_len=32", "data.batch_size=2"),
    *("data.num_batches=2", "predict.target=cuda"),
)


def test_the_memory_of_a_rank_and_the_fewest_ranks_that_fit(predict):
    asked = ("parallel=fsdp2", "parallel.num_processes=6", "predict.memory_gib=0.04", "format=json")
    code, out, err = predict("-m", *GPT, *asked, "precision=fp32,amp_bf16")
    (workload,) = json.loads(out)["workloads"]
    assert (code, err) == (0, "")
    for mode in workload["modes"]:
        by_number = mode["by_world_size"]
        fewest = mode["smallest_world_size"]
        assert [*by_number] == [str(number) for number in sorted({6, *(n for n in (2, 4, 8, 16, 32) if n <= fewest)})]
        assert (mode["parallel"], mode["world_size"], mode["largest_batch"]) == ("fsdp2", 6, None)
        assert by_number["6"] == {"batch_size": 2, **{key: mode[key] for key in by_number["6"] if key != "batch_size"}}
        assert by_number["2"]["peak"]["parameters"] > 2.9 * by_number["6"]["peak"]["parameters"]
        assert mode["end_of_forward"]["communication"] > 0
    assert workload["sentences"][0].startswith("With 0.04 GiB on each GPU, of 2, 4, 8 and so on: fp32 from ")
    fewest = {mode["arm"]: mode["smallest_world_size"] for mode in workload["modes"]}
    assert f"fp32 from {fewest['fp32']} on" in workload["sentences"][0]


def test_replicas_need_the_same_on_any_number_of_gpus(predict):
    asked = ("parallel=ddp", "parallel.num_processes=4", "predict.memory_gib=0.005", "precision=pure_bf16")
    code, out, _ = predict(*GPT, *asked)
    assert code == 0
    assert "ddp on 4 ranks: predicted" in out
    assert "With 0.005 GiB on each GPU, of 2, 4, 8 and so on: pure_bf16 on no number of them." in " ".join(out.split())

    _, out, _ = predict(*GPT, *asked, "format=json")
    ((mode,),) = (workload["modes"] for workload in json.loads(out)["workloads"])
    assert [*mode["by_world_size"]] == ["4"]


def test_arms_that_differ_in_how_ranks_share_are_told_apart(predict):
    asked = ("parallel=fsdp2", "parallel.num_processes=2", "precision=amp_bf16", "format=json")
    _, out, _ = predict("-m", *GPT, *asked, "parallel.mixed_precision=policy,autocast")
    (workload,) = json.loads(out)["workloads"]
    policy, autocast = workload["modes"]
    assert [policy["arm"], autocast["arm"]] == ["amp_bf16", "amp_bf16+mixed_precision=autocast"]
    assert policy["end_of_forward"]["autocast_weights"] == 0 < autocast["end_of_forward"]["autocast_weights"]


def test_ranks_whose_number_is_not_known_are_refused(predict):
    code, out, err = predict(*GPT, "parallel=ddp", "device=cpu")
    assert (code, out) == (2, "")
    assert err.strip() == "error: parallel=ddp on a CPU needs parallel.num_processes"

    code, _, err = predict(*GPT, "parallel=ddp", "parallel.num_processes=2", "predict.batch_sizes=[8]")
    assert code == 2
    assert "predict.batch_sizes with parallel=ddp: the table is over numbers of processes" in err


PRINT_PEAK = """
import re, sys
from pathlib import Path
from ampsweep.commands.main import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process's peak is not told apart from its parent's")
def test_gpt2_xl_is_never_allocated():
    command = [sys.executable, "-c", PRINT_PEAK, "predict", "model=gpt_xl", "predict.target=cuda"]
    chosen = ["precision=amp_bf16", "data.batch_size=2", "predict.batch_sizes=[2]", "format=json"]

    done = subprocess.run([*command, *chosen], capture_output=True, text=True, check=True)

    *printed, peak_kib = done.stdout.splitlines()
    ((mode,),) = (workload["modes"] for workload in json.loads("\n".join(printed))["workloads"])
    assert mode["num_parameters"] == 1_557_611_200
    assert mode["peak_bytes"] > 16 * 1_557_611_200
    assert int(peak_kib) < 2**20
