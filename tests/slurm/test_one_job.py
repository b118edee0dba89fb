"""The suite reads a real Slurm: the jobs of a user, and the job of a process."""

import sys

import pytest
from cluster import wait_until

from ampsweep.launch.slurm import users_jobs

pytestmark = pytest.mark.slurm
SCRIPT = """#!/bin/sh
{python} -c "
import signal, time
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.launch.slurm import own_job
with StopRequest() as stop:
    print(own_job(), flush=True)
    while not stop.requested: time.sleep(0.05)
    print(stop.reason, flush=True)
"
"""


def test_a_cancelled_job_knows_itself_and_its_signal(cluster, environment, tmp_path, monkeypatch):
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "job.sh").write_text(SCRIPT.format(python=f"exec {sys.executable}"))
    words = ("sbatch", "--parsable", "--mem=500M", f"--chdir={tmp_path}", f"--output={tmp_path}/log")
    job = cluster.command(*words, str(tmp_path / "job.sh"), environment=environment).strip()

    log = tmp_path / "log"
    wait_until(lambda: log.exists() and log.read_text() == f"{job}\n", users_jobs)
    state = users_jobs()[job]
    assert (state.state, state.waits, state.is_over) == ("RUNNING", False, False)
    assert state.memory_limit_bytes == 500 * 2**20
    cluster.command("scancel", "--full", job)
    wait_until(lambda: users_jobs()[job].is_over, users_jobs)
    assert "\nSIGTERM\n" in log.read_text()
