"""`experiment=resume_matrix`: saved in one precision, resumed in another, and what the loss does."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from command_line import all_runs, only_sweep, wait_until

from ampsweep.record import find_records

DIGITS = ("model=mlp_small", "data=digits", "tracking=disabled", "predict.with_runs=false", "device=cpu", "seed=0")
SHORT = ("scheduler=constant", "scheduler.num_warmup_steps=0", "trainer.steps=8", "seam.step=5", "trainer.log_every=3")
MATRIX = ("experiment=resume_matrix", *DIGITS, *SHORT)
TWO = ("precision=fp32,amp_fp16", "seam.saved_in=fp32,amp_fp16")


def by_arms():
    return {(run.record.identity.saved_in, run.record.arm): run for run in all_runs()}


def comparison():
    return json.loads((only_sweep() / "comparison.json").read_text())


def test_every_mode_is_resumed_in_every_other(train):
    ended = train(*MATRIX, "precision=fp32,tf32,amp_fp16", "seam.saved_in=null,fp32,tf32,amp_fp16")
    assert ended.code == 0
    runs = by_arms()
    assert len(ended.runs) == len(runs) == 12
    (found,) = comparison()["seams"]
    cells = {(cell["saved_in"], cell["resumed_in"]): cell for cell in found["seams"]}
    for before, after in [(a, b) for a in ("fp32", "amp_fp16") for b in ("fp32", "amp_fp16")]:
        resumed, whole = runs[before, after], runs[None, before]
        assert resumed.record.attempts[0].from_step == 5
        assert resumed.record.attempts[0].checkpoint == str((whole.directory / "checkpoints/seam.pt").resolve())
        jump = resumed.column("train/loss")[6] - whole.column("train/loss")[6]
        assert cells[before, after]["loss_jump"] == {"mean": jump, "n": 1, "sd": None}
        assert (cells[before, after]["val_loss_jump"]["mean"] == cells[before, after]["loss_jump"]["mean"] == 0) == (
            before == after
        )
        assert resumed.column("seam/val_loss").keys() == {6}
        if before == after:
            assert {**whole.column("train/loss"), **resumed.column("train/loss")} == whole.column("train/loss")
    assert runs["tf32", "fp32"].record.status == runs["fp32", "tf32"].record.status == "unsupported"
    assert (
        "the run in tf32 that it goes on from has no checkpoint of step 5: tf32 needs"
        in runs["tf32", "fp32"].record.error
    )
    (workload,) = comparison()["workloads"]
    assert len(workload["runs"]) == 3, "the uninterrupted ones"
    told = " ".join(ended.out.split())
    assert "fp32 to amp_fp16: the checkpoint has no GradScaler state; a fresh one starts at scale 65536" in told
    assert "resumed in the precision it was saved in, every run goes on bitwise." in told
    assert re.search(r"saved in .* resumed in fp32 amp_fp16 .* fp32 0 \S+ amp_fp16 \S+ 0 ", told)


def test_a_shared_run_trains_once_though_it_is_no_point(train):
    def began():
        records = [record for _, record in find_records(only_sweep()).records]
        return {(record.identity.saved_in, record.arm): record.started_at for record in records}

    assert train(*MATRIX, "precision=fp32,pure_bf16", "seam.saved_in=fp32").code == 0
    before = began()
    assert set(before) == {(None, "fp32"), ("fp32", "fp32"), ("fp32", "pure_bf16")}
    assert train(*MATRIX, "precision=fp32,pure_bf16", "seam.saved_in=null,fp32", f"into={only_sweep()}").code == 0
    after = began()
    assert set(after) == {*before, (None, "pure_bf16")}
    assert before.items() <= after.items(), "nothing trained again"


@pytest.mark.slow
def test_a_run_whose_checkpoint_was_deleted_trains_again(train):
    assert train(*MATRIX, "precision=fp32", "seam.saved_in=null").code == 0
    (run,) = all_runs()
    kept = run.directory / "checkpoints/seam.pt"
    kept.unlink()
    assert train(*MATRIX, "precision=pure_bf16", "seam.saved_in=fp32", f"into={only_sweep()}").code == 0
    assert kept.is_file()
    statuses = [record.status for _, record in find_records(only_sweep()).records]
    assert statuses == ["completed", "completed"]


@pytest.mark.slow
@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_matrix_goes_on_after_an_interruption(with_signal, start, train, tmp_path):
    """Interrupted in a resumed run: by Ctrl-C it leaves a checkpoint of its own, killed it begins at the seam again."""
    slow = ("model=custom", "model._target_=own_models.Gated", "+model.at=2", f"+model.gate={tmp_path / 'gate.open'}")
    settings = (*MATRIX[:1], *slow, *DIGITS[1:], *SHORT, "precision=amp_fp16", "seam.saved_in=null,amp_fp16")
    gate, waiting = Path("gate.open"), Path("gate.waiting")
    gate.touch()
    started = start(*settings[:-1], "seam.saved_in=null")
    assert started.finish().code == 0
    gate.unlink()
    waiting.unlink(missing_ok=True)
    started = start(*settings, f"into={only_sweep()}")
    wait_until(waiting.exists, "the resumed run is at its seventh step")
    if with_signal == signal.SIGKILL:
        os.kill(int(waiting.read_text()), with_signal)
    else:
        started.signal(with_signal)
    gate.touch()
    started.finish()
    assert train(*settings, f"into={only_sweep()}").code == 0
    resumed, whole = by_arms()["amp_fp16", "amp_fp16"], by_arms()[None, "amp_fp16"]
    assert [row["step"] for row in resumed.history] == [6, 8] or [row["step"] for row in resumed.history] == [6, 7, 8]
    assert resumed.column("seam/val_loss")[6] == whole.column("val/loss")[5]
    assert resumed.column("train/loss")[8] == whole.column("train/loss")[8]
    (found,) = comparison()["seams"]
    (seam,) = found["seams"]
    gaps = [one["mean"] for key in ("loss_jump", "val_loss_jump", "final_gap") if (one := seam[key]) is not None]
    assert gaps == [0] * len(gaps) != []


@pytest.mark.slow
def test_workers_of_a_launcher_train_a_shared_run_once(train):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert train(*MATRIX, "precision=fp32,pure_bf16", "seam.saved_in=fp32", *launcher).code == 0
    records = [record for _, record in find_records(only_sweep()).records]
    assert sorted((record.identity.saved_in or "-", record.arm, len(record.attempts)) for record in records) == [
        ("-", "fp32", 1),
        ("fp32", "fp32", 1),
        ("fp32", "pure_bf16", 1),
    ]


def test_a_plan_names_what_is_resumed(train):
    ended = train(*MATRIX, "precision=fp32", "seam.saved_in=null,amp_fp16", "dry_run=true")
    assert ended.code == 0
    assert "from step 5 of amp_fp16" in ended.out
    assert not Path("outputs").exists()


@pytest.mark.gpu
def test_a_matrix_on_a_gpu(train):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    modes = "fp32,amp_bf16,amp_fp16,pure_bf16"
    assert train(*MATRIX, "device=cuda", f"precision={modes}", f"seam.saved_in={modes}").code == 0
    (found,) = comparison()["seams"]
    assert len([cell for cell in found["seams"] if cell["loss_jump"] is not None]) == 16
