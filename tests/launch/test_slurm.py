"""Facts about jobs, from answers that a Slurm 22.05 has given."""

import os

import pytest

from ampsweep.launch.slurm import JobState, num_restarts, own_job, users_jobs

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs a shell, as Slurm does")

JOBS = """\
7 | CANCELLED | cpu=1,mem=1000M,node=1,billing=1 |
3_2 | FAILED | cpu=1,mem=1G,node=1,billing=1 |
3_4 | PENDING | |
3_5 | COMPLETING | cpu=1,node=1,billing=1 |
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A machine whose commands of Slurm give a set answer."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)

    def answers(program, text, code=0):
        (tmp_path / "answer").write_text(text)
        (tmp_path / program).write_text(f"#!/bin/sh\ncat {tmp_path}/answer\nexit {code}\n")
        (tmp_path / program).chmod(0o755)

    return answers


def test_the_jobs_of_a_user(slurm):
    slurm("squeue", JOBS)
    assert [(job, state, state.waits, state.is_over) for job, state in users_jobs().items()] == [
        ("7", JobState("7", "CANCELLED", 1000 * 2**20), False, True),
        ("3_2", JobState("3_2", "FAILED", 2**30), False, True),
        ("3_4", JobState("3_4", "PENDING"), True, False),
        ("3_5", JobState("3_5", "COMPLETING"), False, False),
    ]


def test_a_silent_controller_is_no_empty_queue(slurm, monkeypatch):
    slurm("squeue", "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    assert users_jobs() is None
    monkeypatch.setenv("PATH", "")
    assert users_jobs() is None


def test_the_job_of_a_process():
    assert own_job({"SLURM_JOB_ID": "5"}) == "5"
    assert own_job({"SLURM_JOB_ID": "5", "SLURM_ARRAY_JOB_ID": "3", "SLURM_ARRAY_TASK_ID": "2"}) == "3_2"
    assert own_job({}) is None
    assert [num_restarts({"SLURM_RESTART_COUNT": count}) for count in ("2", "", "x")] == [2, 0, 0]
    assert num_restarts({}) == 0
