"""Hydra's launchers for several processes: the same records and comparison, never two trainings at once on a device."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from command_line import all_runs, only_run, only_sweep
from devices import needs_gpus

pytestmark = pytest.mark.slow

NOTES = Path("notes")
OWN = ("model=custom", "model._target_=own_models.Noted", "data=digits", "tracking=disabled")

NO_PREDICTION = "predict.with_runs=false"  # it calls the model, which would note a step of its own


def test_runs_of_two_joblib_workers_come_one_after_the_other(start, tmp_path):
    length = ("trainer.steps=10", "trainer.log_every=5", f"+model.notes={tmp_path / NOTES}", NO_PREDICTION)
    ended = start(
        "-m", *OWN, *length, "precision=fp32,amp_bf16", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"
    ).finish()
    assert ended.code == 0
    assert [line.split()[0] for line in ended.runs] == ["1/2", "2/2"], "told by the process that waits for them, once"
    assert {line.split()[1] for line in ended.runs} == {"fp32", "amp_bf16"}
    assert all(re.search(r"completed .* ms a step +peak .* val loss", line) for line in ended.runs)
    runs = sorted(all_runs(), key=lambda run: run.record.arm)
    assert [(run.record.arm, run.record.status) for run in runs] == [("amp_bf16", "completed"), ("fp32", "completed")]
    assert [[row["step"] for row in run.history] for run in runs] == [[5, 10], [5, 10]]
    assert runs[0].record.pair_key == runs[1].record.pair_key
    assert "1 of 1 pair completed" in " ".join(ended.out.split())
    assert "amp_bf16" in (only_sweep() / "comparison.md").read_text()

    steps = sorted(tuple(map(int, line.split())) for line in NOTES.read_text().splitlines())
    processes = [process for _, process in steps]
    assert len(processes) == 20
    assert set(processes) == {run.record.attempts[0].pid for run in runs}
    assert len(set(processes[:10])) == len(set(processes[10:])) == 1, "both trained at once"


@needs_gpus(2)
def test_joblib_workers_train_at_once_on_gpus_of_one_model(start, tmp_path):
    number = sum(
        torch.cuda.get_device_name(n) == torch.cuda.get_device_name(0) for n in range(torch.cuda.device_count())
    )
    if number < 2:
        pytest.skip("needs two GPUs of one model")
    met = tmp_path / "met"
    met.mkdir()
    ended = start(
        "-m",
        *("model=custom", "model._target_=own_models.Met", f"+model.folder={met}", f"+model.number={number}"),
        *("data=digits", "tracking=disabled", NO_PREDICTION, "trainer.steps=40", "trainer.warmup_steps=2"),
        *("device=auto", f"seed={','.join(map(str, range(number)))}", "precision=fp32"),
        *("hydra/launcher=joblib", f"hydra.launcher.n_jobs={number}"),
    ).finish()
    assert ended.code == 0, ended.err
    records = [run.record for run in all_runs()]
    assert len({record.identity.device for record in records}) == len(records) == number
    assert len({record.identity.device_name for record in records}) == 1
    times = [json.loads((met / str(record.attempts[0].pid)).read_text())[2:] for record in records]
    assert max(began for began, _ in times) < min(over for _, over in times), "all computed at the same time"
    reasons = [reason for record in records for reason in record.contamination.reasons or ()]
    assert not [reason for reason in reasons if "computed on" in reason], "no other run has a context on its GPU"


@pytest.mark.skipif(sys.platform == "win32", reason="submitit starts its jobs by a POSIX shell")
def test_a_run_may_be_a_job_of_submitit(start, tmp_path):
    ended = start(
        "-m",
        *("model=mlp_small", "tracking=disabled", "trainer.steps=4", "trainer.log_every=2"),
        "precision=amp_bf16",
        "hydra/launcher=submitit_local",
        "hydra.launcher.timeout_min=5",
    ).finish()
    assert ended.code == 0
    assert [line.split()[:2] for line in ended.runs] == [["1/1", "amp_bf16"]]
    run = only_run()
    assert (run.record.arm, run.record.status) == ("amp_bf16", "completed")
    assert [row["step"] for row in run.history] == [2, 4]
    assert run.directory.parent == only_sweep()
    assert "amp_bf16" in (only_sweep() / "comparison.md").read_text()
