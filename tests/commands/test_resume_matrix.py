"""`experiment=resume_matrix`: saved in one precision, resumed in another, and what the loss does."""

import json
import re
from pathlib import Path

import pytest
from command_line import MLP, all_runs, only_sweep
from devices import needs_cuda

MATRIX = (
    *("experiment=resume_matrix", "model=mlp_small", "data=digits", "tracking=disabled", "predict.with_runs=false"),
    *("device=cpu", "scheduler=constant", "scheduler.num_warmup_steps=0", "trainer.steps=8"),
    "trainer.checkpoint_every=5",
)


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
    modes = ("fp32", "amp_fp16")
    assert train(*MATRIX, f"precision={','.join(modes)}", "seed=0,1").code == 0
    command = (*MATRIX, f"precision={','.join(modes)}", "seed=1", f"into={only_sweep()}", of_each(*modes))
    planned = train(*command, "dry_run=true")
    assert "fp32 after step 5 of amp_fp16" in planned.out
    ended = train(*command)
    assert (ended.code, len(ended.runs)) == (0, 4)
    runs, rows = by_arms(), resumed_rows()
    assert len(runs) == 8
    for before, after in [(a, b) for a in modes for b in modes]:
        arm = after if before == after else f"{after} after step 5 of {before}"
        resumed, whole = runs[arm, before, 1], runs[before, None, 1]
        assert resumed.directory.name.startswith(f"resumed-{after}-mlp_small-s1-")
        (attempt,) = resumed.record.attempts
        assert (attempt.from_step, attempt.saved_by) == (5, whole.record.run_id)
        assert Path(attempt.checkpoint).samefile(whole.directory / "checkpoints/last.pt")
        assert resumed.record.pair_key == whole.record.pair_key
        jump = resumed.column("train/loss")[6] - whole.column("train/loss")[6]
        assert (resumed.column("train/loss").items() <= whole.column("train/loss").items()) == (before == after)
        assert rows[before, after]["loss_jump"]["mean"] == pytest.approx(jump, rel=1e-12)
    assert "the checkpoint has no GradScaler state; a fresh one starts at scale 65536" in ended.words
    assert re.search(r"saved in resumed in .* fp32 fp32 5 \S+ 0 ", ended.words)
    again = train(*command)
    assert (again.code, again.runs) == (0, []), "every point is finished"
    assert {key: run.record for key, run in by_arms().items()} == {key: run.record for key, run in runs.items()}


@pytest.mark.nightly
def test_checkpoint_files_are_resumed_and_interrupted_resumptions_go_on(train):
    assert train(*MATRIX, "precision=fp32", "seed=0", "trainer.checkpoint_every=4").code == 0
    (whole,) = all_runs()
    files = [whole.directory / "checkpoints" / name for name in ("previous.pt", "last.pt")]
    into = (f"into={only_sweep()}", f"resume={','.join(map(str, files))}")
    command = (*MATRIX, "precision=amp_fp16,tf32", "seed=0", "trainer.checkpoint_every=6", *into)
    assert train(*command).code == 0
    assert sorted((run.record.arm, run.record.status) for run in all_runs() if "after" in run.record.arm) == [
        ("amp_fp16 after step 4 of fp32", "completed"),
        ("amp_fp16 after step 8 of fp32", "completed"),
        ("tf32 after step 4 of fp32", "unsupported"),
        ("tf32 after step 8 of fp32", "unsupported"),
    ], "the checkpoint in the middle is kept to the end"

    before = by_arms()["amp_fp16 after step 4 of fp32", "fp32", 0]
    record = before.record
    record.status = "interrupted"
    record.write(before.directory)
    assert train(*command).code == 0
    after = by_arms()["amp_fp16 after step 4 of fp32", "fp32", 0]
    assert [(attempt.from_step, attempt.saved_in) for attempt in after.record.attempts] == [(4, "fp32"), (6, None)]
    assert after.column("train/loss") == before.column("train/loss")
    assert [*after.column("train/loss")] == [5, 6, 7, 8]


def test_a_single_resumed_run_is_found_by_auto(train):
    single = (*MLP, "device=cpu", "trainer.steps=8")
    assert train(*single, "trainer.checkpoint_every=5").code == 0
    (whole,) = all_runs()
    command = (*single, "precision=amp_bf16", "trainer.checkpoint_every=6")
    assert train(*command, f"resume={whole.directory}").code == 0
    (resumed,) = [run for run in all_runs() if run.record.origin is not None]
    record = resumed.record
    record.status, record.attempts[-1].host = "interrupted", "another machine"
    record.write(resumed.directory)
    assert train(*command, "resume=auto").code == 0
    record = resumed.record
    assert (record.status, record.arm) == ("completed", "amp_bf16 after step 5 of fp32")
    assert record.origin.saved_by == whole.record.run_id
    refused = train("-m", *MATRIX, "precision=fp32", "seed=0", f"resume={whole.directory}", "model.hidden_size=32")
    assert (refused.code, "is of another model (mlp_small)" in refused.err, len(all_runs())) == (2, True, 2)


@needs_cuda
def test_a_matrix_on_a_gpu(train):
    modes = ("fp32", "amp_bf16", "amp_fp16", "pure_bf16")
    several = (*MATRIX, "device=cuda", "seed=0", f"precision={','.join(modes)}")
    assert train(*several).code == 0
    assert train(*several, f"into={Path(only_sweep())}", of_each(*modes)).code == 0
    assert [row["loss_jump"] is None for row in resumed_rows().values()] == [False] * 16
