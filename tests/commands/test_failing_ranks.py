"""A rank that fails ends all, with the cause as the run's one outcome; nothing is left running."""

import os
import time

import psutil
import pytest
from command_line import PATIENCE_S, all_runs, only_run

OWN = (
    "model=custom",
    "data=digits",
    "task=classification",
    "model._target_=own_models.BrokenRank",
    "trainer.steps=40",
    "trainer.log_every=1",
    "tracking=disabled",
    "predict.with_runs=false",
    "device=cpu",
    "parallel=ddp",
    "parallel.num_processes=2",
)
FAILURES = {
    ("raises", 1): ("failed", "rank 1: RuntimeError: my model broke"),
    ("raises", 0): ("failed", "rank 0: RuntimeError: my model broke"),
    ("is_killed", 1): ("failed", "rank 1: it was killed by SIGKILL"),
    ("is_killed", 0): ("failed", "rank 0: it was killed by SIGKILL"),
    ("leaves", 1): ("failed", "rank 1: its process ended with exit code 7 without a result"),
    ("runs_out_of_memory", 1): ("oom", "rank 1: out of memory in forward of step 3: 3638 TiB asked for with "),
    ("diverges", 1): ("diverged", "the training loss is nan at step 3"),
}
"""What a user's model does in its third step on one of two ranks, and what then stands in the one record."""


def alive_in(directory):
    """Processes whose working directory is this one, without the fork server that this process keeps."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(directory) and os.getpid() not in (process.pid, process.ppid()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_ranks_stopped_with_all_around_them_are_interrupted(start):
    start(*OWN, "trainer.steps=100000", "+model.rank=1", "+model.what=signals_all").finish()
    record = only_run().record
    assert (record.status, record.error[:18]) == ("interrupted", "SIGTERM after step")


@pytest.mark.slow
def test_one_rank_ends_all_with_its_cause(train, tmp_path):
    for rank in (0, 1):
        names = [name for name, at in FAILURES if at == rank]
        train("-m", *OWN, f"+model.rank={rank}", f"+model.what={','.join(names)}")
    runs = all_runs()
    assert len(runs) == len(FAILURES)
    for run in runs:
        model = run.record.config["model"]
        status, sentence = FAILURES[model["what"], model["rank"]]
        assert run.record.status == status, run.record.error
        assert run.record.error.startswith(sentence), run.record.error
        assert run.record.identity.world_size == 2
        ended_s = (run.directory / "run.json").stat().st_mtime
        assert ended_s - (tmp_path / f"{model['what']}-{model['rank']}").stat().st_mtime < 30
    until = time.monotonic() + PATIENCE_S
    while left := alive_in(tmp_path):
        assert time.monotonic() < until, left
        time.sleep(0.1)
