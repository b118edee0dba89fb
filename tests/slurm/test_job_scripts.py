"""The job scripts of docs/cluster.md, submitted to a real Slurm of one node."""

import re
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from cluster import TRAINING, OneNodeSlurm, wait_until

from ampsweep.records import find_records, read_history

pytestmark = [pytest.mark.slurm, pytest.mark.nightly, pytest.mark.timeout(600)]  # the first one starts all jobs

STEPS_OF_RANKS = 500
"""Ranks agree to stop a quarter of a second or 100 steps after they were asked."""


@dataclass(frozen=True)
class BatchJob:
    """A script that was submitted from `directory`."""

    cluster: OneNodeSlurm
    directory: Path
    job: str

    def log(self):
        return (self.directory / f"slurm-{self.job}.out").read_text()

    def wait_for(self, state):
        show = partial(self.cluster.command, "scontrol", "--oneliner", "show", "job", self.job)
        wait_until(lambda: f"JobState={state} " in show(), lambda: f"{show()}: {self.log()}")

    def requeue(self):
        self.cluster.command("scontrol", "requeue", self.job)

    def runs(self):
        return find_records(self.directory / "outputs").records


def submitted(cluster, environment, repository, directory, script, *changes, options=()):
    """Submit a script of the page as it is, but without GPUs, and with a training of a second."""
    for folder in ("orders", "t"):
        (directory / folder).mkdir(parents=True)
    (directory / "orders/job").write_text("wait")
    script = re.sub(r"--(gpus-per-node|cpus-per-task|nodes|ntasks-per-node)=\S+ ?", "", script)
    script = re.sub(r"#SBATCH *\n", "", script).replace("torchrun", "python -m torch.distributed.run")
    flags = "-m" if " -m seed" in script else ""
    training = " ".join([f"{repository}/train.py", flags, *TRAINING, "device=cpu", *changes])
    script = re.sub(r"train\.py.*", training, script).replace("python ", f"{sys.executable} ")
    (directory / "job.sh").write_text(script)
    words = ("sbatch", "--parsable", f"--chdir={directory}", *options, str(directory / "job.sh"))
    # None of the jobs waits for another's lock of the device.
    job = cluster.command(*words, environment=environment | {"TMPDIR": str(directory / "t")})
    return BatchJob(cluster, directory, job.strip())


@pytest.fixture(scope="module")
def jobs(cluster, environment, repository, tmp_path_factory):
    """A sweep, a training, and one on ranks: each was stopped and requeued, and has ended."""
    page = (repository / "docs/cluster.md").read_text()
    of_sweep, of_ranks = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    submit = partial(submitted, cluster, environment, repository)
    top = tmp_path_factory.mktemp("jobs")
    sweep = submit(top / "sweep", of_sweep, "precision=fp32,amp_bf16", "seed=0")
    one = submit(top / "single", of_sweep.replace(" -m seed=0,1,2 precision=fp32,amp_bf16", ""), "seed=1")
    changes = ("parallel=ddp", f"trainer.steps={STEPS_OF_RANKS}")
    ranks = submit(top / "ranks", of_ranks, *changes, options=["--ntasks=2"])
    for job in (one, sweep, ranks):
        wait_until((job.directory / "orders/job.obeyed").exists, job.log)
        if job is sweep:
            cluster.command("scancel", "--signal=USR1", f"{job.job}.0")
        else:
            job.requeue()
        time.sleep(1)
        (job.directory / "orders/job").unlink()  # the step ends, in which the signals found it
    sweep.wait_for("FAILED")  # it has ended by itself, with a run that was interrupted
    sweep.requeue()
    for job in (sweep, one, ranks):
        job.wait_for("COMPLETED")
    return sweep, one, ranks


def test_a_requeued_sweep_goes_on_in_its_directory(jobs):
    sweep, _, _ = jobs
    (_, warned), (_, other) = sorted(sweep.runs(), key=lambda run: -len(run[1].attempts))
    assert (warned.status, other.status) == ("completed", "completed")
    assert len({path.parent for path, _ in sweep.runs()}) == 1
    assert [attempt.slurm_job for attempt in warned.attempts] == [sweep.job] * 2
    assert warned.attempts[0].stopped_by == "SIGUSR1"
    assert warned.attempts[1].from_step > 0
    assert "Slurm has requeued this job: going on with" in sweep.log()
    assert re.search(r"interrupted .* SIGUSR1 after step \d+ of 16", sweep.log())


def test_a_requeued_training_resumes_by_itself(jobs):
    _, job, _ = jobs
    [(path, record)] = job.runs()
    assert record.status == "completed"
    assert [attempt.slurm_job for attempt in record.attempts] == [job.job] * 2
    assert record.attempts[0].stopped_by == "SIGTERM"
    assert [row["step"] for row in read_history(path)] == [*range(1, 17)]
    assert "Slurm has requeued this job: resuming" in job.log()


def test_torchrun_trains_over_tasks_and_is_requeued(jobs):
    _, _, job = jobs
    [(path, record)] = job.runs()
    assert (record.status, record.identity.world_size, record.identity.parallel) == ("completed", 2, "ddp")
    assert [attempt.slurm_job for attempt in record.attempts] == [job.job] * 2
    assert record.attempts[0].stopped_by == "SIGTERM"
    assert 5 <= record.attempts[1].from_step < STEPS_OF_RANKS, "the ranks stop after the same step"
    assert len({rank.pid for rank in record.ranks}) == 2
    assert [row["step"] for row in read_history(path)] == [*range(1, STEPS_OF_RANKS + 1)]
