"""Trainings on two ranks: one record, one outcome, checkpoints that any number of processes can resume."""

import os
import time

import psutil
import pytest
from command_line import PATIENCE_S, all_runs
from recorded_sweeps import COMMANDS

from ampsweep.commands.dry_run import plan_document
from ampsweep.config.compose import compose_points
from ampsweep.report.document import tables
from ampsweep.report.markdown import markdown
from ampsweep.sweep.preflight import Checked

FAILURES = {
    ("raises", 1): ("failed", "rank 1: RuntimeError: my model broke"),
    ("raises", 0): ("failed", "rank 0: RuntimeError: my model broke"),
    ("is_killed", 1): ("failed", "rank 1: it was killed by SIGKILL"),
    ("is_killed", 0): ("failed", "rank 0: it was killed by SIGKILL"),
    ("leaves", 1): ("failed", "rank 1: its process ended with exit code 7 without a result"),
    ("runs_out_of_memory", 1): ("oom", "rank 1: out of memory in forward of step 3: 3638 TiB asked for with "),
    ("diverges", 1): ("diverged", "the training loss is nan at step 3"),
}
"""What a model does on one of two ranks, with the status and the error of the one record."""


def test_ranks_have_one_record_and_a_failing_rank_ends_all(recorded):
    fine, failed = (run.record for run in recorded("ranks").runs)
    assert recorded("ranks").ended.code == 1
    assert [record.identity.world_size for record in (fine, failed)] == [2, 2]
    assert (fine.identity.parallel, fine.identity.global_batch_size) == ("ddp", 2 * fine.identity.batch_size)
    assert [row["step"] for row in recorded("ranks").runs[0].history] == [1, 2, 3, 4, 5, 6]
    assert fine.status == "completed"
    assert fine.memory.peak["communication"] > 0
    assert (failed.status, failed.error.split(" (")[0]) == FAILURES["raises", 1]


def in_directory(directory):
    """Processes whose working directory this is, without the fork server that the tests share."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(directory) and os.getpid() not in (process.pid, process.ppid()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.nightly
def test_any_failure_of_a_rank_ends_all_and_leaves_no_process(train, tmp_path):
    for rank in (0, 1):
        names = [name for name, at in FAILURES if at == rank]
        arguments = [word for word in COMMANDS["ranks"] if not word.startswith(("+model.", "trainer.steps"))]
        train(*arguments, "trainer.steps=40", f"+model.rank={rank}", f"+model.what={','.join(names)}")
    assert len(all_runs()) == len(FAILURES)
    for run in all_runs():
        model = run.record.config["model"]
        status, sentence = FAILURES[model["what"], model["rank"]]
        assert run.record.status == status, run.record.error
        assert run.record.error.startswith(sentence), run.record.error
        ended_s = (run.directory / "run.json").stat().st_mtime
        assert ended_s - (tmp_path / f"{model['what']}-{model['rank']}").stat().st_mtime < 30
    until = time.monotonic() + PATIENCE_S
    while left := in_directory(tmp_path):
        assert time.monotonic() < until, left
        time.sleep(0.1)


def test_a_plan_names_the_strategy_and_counts_a_point_once():
    overrides = ["parallel=ddp,fsdp2", "parallel.num_processes=2", "parallel.mixed_precision=policy,autocast"]
    configs = [point.config for point in compose_points([*overrides, "precision=amp_bf16"], multirun=True).points]
    document = plan_document(configs, [Checked(num_steps=3, num_parameters=7)] * len(configs), elsewhere=True)
    (table,) = tables(document)
    lines = [" ".join(cell.text for cell in row.cells) for row in table.rows]
    assert ["ddp x2" in line for line in lines[:2]] == [True, True]
    assert "fsdp2 x2" in lines[2]
    assert "4 points, 3 to train" in markdown(document)
