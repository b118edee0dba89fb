"""`experiment=resume_matrix`: saved in one precision, resumed in another, and what the loss does."""

import json
import re
from pathlib import Path

import pytest
from command_line import all_runs, only_sweep

DIGITS = ("model=mlp_small", "data=digits", "tracking=disabled", "predict.with_runs=false", "device=cpu")
SHORT = ("scheduler=constant", "scheduler.num_warmup_steps=0", "trainer.steps=8", "trainer.checkpoint_every=5")
MATRIX = ("experiment=resume_matrix", *DIGITS, *SHORT)
TWO = ("precision=fp32,amp_fp16", "seed=0,1")


def by_arms():
    """The runs by their arm, the arm that they were saved in (None: they began afresh) and their seed."""
    runs = [(run, run.record.origin) for run in all_runs()]
    return {(run.record.arm, origin and origin.saved_in, run.record.identity.seed): run for run, origin in runs}


def of_each(*modes):
    """`resume=` with the run of each mode that has the seed of the point."""
    return f"resume={','.join(f'{only_sweep()}/{mode}-*-s${{seed}}-*' for mode in modes)}"


def resumed_rows():
    (workload,) = json.loads((only_sweep() / "comparison.json").read_text())["workloads"]
    return {(row["saved_in"], row["resumed_in"]): row for row in workload["resumed"]}


def test_every_mode_is_resumed_in_every_other(train):
    assert train(*MATRIX, *TWO).code == 0
    command = (*MATRIX, *TWO, f"into={only_sweep()}", of_each("fp32", "amp_fp16"))
    ended = train(*command)
    assert (ended.code, len(ended.runs)) == (0, 8)
    runs, rows = by_arms(), resumed_rows()
    assert len(runs) == 12
    for before, after in [(a, b) for a in ("fp32", "amp_fp16") for b in ("fp32", "amp_fp16")]:
        jumps = []
        for seed in (0, 1):
            arm = after if before == after else f"{after} after step 5 of {before}"
            resumed, whole = runs[arm, before, seed], runs[before, None, seed]
            assert resumed.directory.name.startswith(f"resumed-{after}-mlp_small-s{seed}-")
            (attempt,) = resumed.record.attempts
            assert (attempt.from_step, attempt.saved_by) == (5, whole.record.run_id)
            assert Path(attempt.checkpoint).samefile(whole.directory / "checkpoints/last.pt")
            assert resumed.record.pair_key == whole.record.pair_key
            jumps.append(resumed.column("train/loss")[6] - whole.column("train/loss")[6])
            if before == after:
                assert {**whole.column("train/loss"), **resumed.column("train/loss")} == whole.column("train/loss")
        jump = rows[before, after]["loss_jump"]
        assert (jump["n"], jump["mean"]) == (2, pytest.approx(sum(jumps) / 2, rel=1e-12))
        assert (jump["mean"] == jump["sd"] == 0) == (before == after)
    told = " ".join(ended.out.split())
    assert "the checkpoint has no GradScaler state; a fresh one starts at scale 65536" in told
    assert re.search(r"saved in resumed in .* fp32 fp32 5 \S+ 0 ", told)
    began = {key: run.record.started_at for key, run in runs.items()}
    again = train(*command)
    assert (again.code, again.runs) == (0, []), "every point is finished"
    assert {key: run.record.started_at for key, run in by_arms().items()} == began


def test_a_checkpoint_file_is_resumed_like_its_run(train):
    assert train(*MATRIX, "precision=fp32", "seed=0", "trainer.checkpoint_every=4").code == 0
    (whole,) = all_runs()
    files = [whole.directory / "checkpoints" / name for name in ("previous.pt", "last.pt")]
    given = ",".join(map(str, files))
    assert train(*MATRIX, "precision=amp_bf16", "seed=0", f"into={only_sweep()}", f"resume={given}").code == 0
    resumed = [run for run in all_runs() if run.record.origin is not None]
    assert sorted((run.record.attempts[0].from_step, run.record.arm) for run in resumed) == [
        (4, "amp_bf16 after step 4 of fp32"),
        (8, "amp_bf16 after step 8 of fp32"),
    ], "the middle is kept to the end"


def test_a_resumed_run_that_never_trains_has_its_arm(train):
    assert train(*MATRIX, "precision=fp32", "seed=0").code == 0
    assert train(*MATRIX, "precision=tf32", "seed=0", f"into={only_sweep()}", of_each("fp32")).code == 0
    assert {run.record.arm: run.record.status for run in all_runs()} == {
        "fp32": "completed",
        "tf32 after step 5 of fp32": "unsupported",
    }


def test_an_interrupted_resumed_run_goes_on_with_its_own(train):
    assert train(*MATRIX, "precision=fp32", "seed=0").code == 0
    command = (*MATRIX, "precision=amp_fp16", "seed=0", "trainer.checkpoint_every=6", of_each("fp32"))
    assert train(*command, f"into={only_sweep()}").code == 0
    before = by_arms()["amp_fp16 after step 5 of fp32", "fp32", 0]
    record = before.record
    record.status = "interrupted"
    record.write(before.directory)
    assert train(*command, f"into={only_sweep()}").code == 0
    after = by_arms()["amp_fp16 after step 5 of fp32", "fp32", 0]
    assert after.record.status == "completed"
    assert [attempt.from_step for attempt in after.record.attempts] == [5, 6]
    assert [attempt.saved_in for attempt in after.record.attempts] == ["fp32", None]
    assert after.column("train/loss") == before.column("train/loss")
    assert [*after.column("train/loss")] == [6, 7, 8]


def test_an_interrupted_resumed_run_is_found_by_auto(train):
    single = (*DIGITS, "trainer.steps=8", "trainer.log_every=1")
    assert train(*single, "trainer.checkpoint_every=5").code == 0
    (whole,) = all_runs()
    command = (*single, "precision=amp_bf16", "trainer.checkpoint_every=6")
    assert train(*command, f"resume={whole.directory}").code == 0
    (resumed,) = [run for run in all_runs() if run.record.origin is not None]
    resumed.record.status = "interrupted"
    resumed.record.write(resumed.directory)
    assert train(*command, "resume=auto").code == 0
    record = next(run.record for run in all_runs() if run.directory == resumed.directory)
    assert (record.status, record.arm, record.origin.saved_by) == (
        "completed",
        "amp_bf16 after step 5 of fp32",
        whole.record.run_id,
    )


def test_a_checkpoint_of_another_model_refuses_the_sweep(train):
    assert train(*MATRIX, "precision=fp32", "seed=0").code == 0
    ended = train(*MATRIX, *TWO, of_each("fp32").replace("${seed}", "0"), "model.hidden_size=32")
    assert ended.code == 2
    assert "is of another model (mlp_small)" in ended.err
    assert len(all_runs()) == 1


def test_a_plan_names_what_is_resumed(train):
    assert train(*MATRIX, "precision=amp_fp16", "seed=0").code == 0
    ended = train(*MATRIX, "precision=fp32", "seed=0", of_each("amp_fp16"), "dry_run=true")
    assert ended.code == 0
    assert "fp32 after step 5 of amp_fp16" in ended.out
    assert len(all_runs()) == 1


@pytest.mark.slow
def test_workers_of_a_launcher_resume_too(train):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    assert train(*MATRIX, "precision=fp32", "seed=0").code == 0
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", f"into={only_sweep()}")
    assert train(*MATRIX, "precision=fp32,pure_bf16", "seed=0", of_each("fp32"), *launcher).code == 0
    assert sorted(run.record.arm for run in all_runs()) == ["fp32", "fp32", "pure_bf16 after step 5 of fp32"]


@pytest.mark.gpu
def test_a_matrix_on_a_gpu(train):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    modes = ("fp32", "amp_bf16", "amp_fp16", "pure_bf16")
    several = (*MATRIX, "device=cuda", "seed=0", f"precision={','.join(modes)}")
    assert train(*several).code == 0
    assert train(*several, f"into={Path(only_sweep())}", of_each(*modes)).code == 0
    assert len([row for row in resumed_rows().values() if row["loss_jump"] is not None]) == 16
