"""Hydra's launchers for several processes: the same records and comparison, never two trainings at once on a device."""

import json
import re
from pathlib import Path

import pytest
import torch
from command_line import all_runs, only_sweep
from devices import needs_gpus

NOTES = Path("notes")
OWN = ("data=digits", "tracking=disabled", "predict.with_runs=false")  # a prediction calls the model, too


@pytest.mark.nightly
def test_runs_of_two_joblib_workers_come_one_after_the_other(train, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    noted = ("model=custom", "model._target_=own_models.Noted", f"+model.notes={tmp_path / NOTES}")
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "precision=fp32,amp_bf16")
    ended = train("-m", *noted, *OWN, *launcher, "trainer.steps=10", "trainer.log_every=5")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.runs] == ["1/2", "2/2"], "by the process that waits for them, once"
    assert {line.split()[1] for line in ended.runs} == {"fp32", "amp_bf16"}
    assert all(re.search(r"completed .* ms a step +peak .* val loss", line) for line in ended.runs)
    runs = sorted(all_runs(), key=lambda run: run.record.arm)
    assert [(run.record.arm, run.record.status) for run in runs] == [("amp_bf16", "completed"), ("fp32", "completed")]
    assert [[row["step"] for row in run.history] for run in runs] == [[5, 10], [5, 10]]
    assert runs[0].record.pair_key == runs[1].record.pair_key
    assert "1 of 1 pair completed" in ended.words
    assert "amp_bf16" in (only_sweep() / "comparison.md").read_text()

    steps = sorted(tuple(map(int, line.split())) for line in NOTES.read_text().splitlines())
    processes = [process for _, process in steps]
    assert len(processes) == 20
    assert set(processes) == {run.record.attempts[0].pid for run in runs}
    assert len(set(processes[:10])) == len(set(processes[10:])) == 1, "both trained at once"


@needs_gpus(2)
def test_joblib_workers_train_at_once_on_gpus_of_one_model(train, tmp_path):
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if (number := names.count(names[0])) < 2:
        pytest.skip("needs two GPUs of one model")
    met = tmp_path / "met"
    met.mkdir()
    ended = train(
        *("-m", "model=custom", "model._target_=own_models.Met", f"+model.folder={met}", f"+model.number={number}"),
        *(*OWN, "trainer.steps=40", "trainer.warmup_steps=2", "device=auto", "precision=fp32"),
        f"seed={','.join(map(str, range(number)))}",
        *("hydra/launcher=joblib", f"hydra.launcher.n_jobs={number}"),
    )
    assert ended.code == 0, ended.err
    records = [run.record for run in all_runs()]
    assert len({record.identity.device for record in records}) == len(records) == number
    assert len({record.identity.device_name for record in records}) == 1
    times = [json.loads((met / str(record.attempts[0].pid)).read_text())[2:] for record in records]
    assert max(began for began, _ in times) < min(over for _, over in times), "all computed at the same time"
    reasons = [reason for record in records for reason in record.contamination.reasons or ()]
    assert not [reason for reason in reasons if "computed on" in reason], "no other run has a context on its GPU"
