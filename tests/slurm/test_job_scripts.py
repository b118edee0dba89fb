"""The job scripts of docs/cluster.md, submitted to a real Slurm of one node."""

import re
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from cluster import OneNodeSlurm

from ampsweep.record import RunRecord, find_records, read_history

pytestmark = [pytest.mark.slurm, pytest.mark.nightly, pytest.mark.timeout(600)]  # the first one starts all jobs

PATIENCE_S = 240.0
SMALL = (
    *("model=custom", "model._target_=ordered_models.Ordered", "+model.orders=orders", "data=digits"),
    *("trainer.steps=16", "trainer.log_every=1", "trainer.eval_every=null", "optimizer.lr=0.01"),
    *("tracking=disabled", "predict.with_runs=false", "device=cpu"),
)
STEPS_OF_RANKS = 500
"""Ranks agree to stop a quarter of a second or 100 steps after they were asked."""


@dataclass(frozen=True)
class BatchJob:
    """A script that was submitted from `directory`."""

    cluster: OneNodeSlurm
    directory: Path
    job: str

    @property
    def log(self) -> str:
        return (self.directory / f"slurm-{self.job}.out").read_text()

    def wait_for(self, state: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while (found := self.state()) != state:
            assert time.monotonic() < until, f"{found}, not {state}: {self.log}"
            time.sleep(0.2)

    def state(self) -> str:
        shown = self.cluster.command("scontrol", "--oneliner", "show", "job", self.job)
        return re.search(r"JobState=(\S+)", shown)[1]

    def runs(self) -> list[tuple[Path, RunRecord]]:
        return find_records(self.directory / "outputs").records


def submitted(cluster, environment, repository, directory, script, *changes, options=()) -> BatchJob:
    """Submit a script of the page as it is, but without GPUs, and with a training of a second."""
    for folder in ("orders", "t"):
        (directory / folder).mkdir(parents=True)
    (directory / "orders/job").write_text("wait")
    script = re.sub(r"--(gpus-per-node|cpus-per-task|nodes|ntasks-per-node)=\S+ ?", "", script)
    script = re.sub(r"#SBATCH *\n", "", script).replace("torchrun", "python -m torch.distributed.run")
    training = " ".join([f"{repository}/train.py", "-m" if " -m seed" in script else "", *SMALL, *changes])
    script = re.sub(r"train\.py.*", training, script).replace("python ", f"{sys.executable} ")
    (directory / "job.sh").write_text(script)
    words = ("sbatch", "--parsable", f"--chdir={directory}", *options, str(directory / "job.sh"))
    # None of the jobs waits for another's lock of the device.
    job = cluster.command(*words, environment=environment | {"TMPDIR": str(directory / "t")})
    return BatchJob(cluster, directory, job.strip())


@dataclass(frozen=True)
class Jobs:
    """The jobs of this module, all of which have ended."""

    sweep: BatchJob
    single: BatchJob
    ranks: BatchJob


@pytest.fixture(scope="module")
def jobs(cluster, environment, repository, tmp_path_factory) -> Jobs:
    page = (repository / "docs/cluster.md").read_text()
    of_sweep, of_ranks = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", page, re.DOTALL)
    submit = partial(submitted, cluster, environment, repository)
    top = tmp_path_factory.mktemp("jobs")
    sweep = submit(top / "sweep", of_sweep, "precision=fp32,amp_bf16", "seed=0")
    single = submit(top / "single", of_sweep.replace(" -m seed=0,1,2 precision=fp32,amp_bf16", ""), "seed=1")
    changes = ("parallel=ddp", f"trainer.steps={STEPS_OF_RANKS}")
    ranks = submit(top / "ranks", of_ranks, *changes, options=["--ntasks=2"])
    for job in (single, sweep, ranks):
        obeyed = job.directory / "orders/job.obeyed"
        until = time.monotonic() + PATIENCE_S
        while not obeyed.exists():
            assert time.monotonic() < until, job.log
            time.sleep(0.1)
        if job is sweep:
            cluster.command("scancel", "--signal=USR1", f"{job.job}.0")
        else:
            cluster.command("scontrol", "requeue", job.job)
        time.sleep(1)
        (job.directory / "orders/job").unlink()  # the step ends, in which the signals found it
    sweep.wait_for("FAILED")  # it has ended by itself, with a run that was interrupted
    cluster.command("scontrol", "requeue", sweep.job)
    for job in (sweep, single, ranks):
        job.wait_for("COMPLETED")
    return Jobs(sweep, single, ranks)


def test_a_requeued_sweep_goes_on_in_its_directory(jobs):
    (_, warned), (_, other) = sorted(jobs.sweep.runs(), key=lambda run: -len(run[1].attempts))
    assert (warned.status, other.status) == ("completed", "completed")
    assert len({path.parent for path, _ in jobs.sweep.runs()}) == 1
    assert [attempt.slurm_job for attempt in warned.attempts] == [jobs.sweep.job] * 2
    assert warned.attempts[0].stopped_by == "SIGUSR1"
    assert warned.attempts[1].from_step > 0
    assert "Slurm has requeued this job: going on with" in jobs.sweep.log
    assert re.search(r"interrupted .* SIGUSR1 after step \d+ of 16", jobs.sweep.log)


def test_a_requeued_training_resumes_by_itself(jobs):
    [(path, record)] = jobs.single.runs()
    assert record.status == "completed"
    assert [attempt.slurm_job for attempt in record.attempts] == [jobs.single.job] * 2
    assert record.attempts[0].stopped_by == "SIGTERM"
    assert [row["step"] for row in read_history(path)] == [*range(1, 17)]
    assert "Slurm has requeued this job: resuming" in jobs.single.log


def test_torchrun_trains_over_tasks_and_is_requeued(jobs):
    [(path, record)] = jobs.ranks.runs()
    assert (record.status, record.identity.world_size, record.identity.parallel) == ("completed", 2, "ddp")
    assert [attempt.slurm_job for attempt in record.attempts] == [jobs.ranks.job] * 2
    assert record.attempts[0].stopped_by == "SIGTERM"
    assert 5 <= record.attempts[1].from_step < STEPS_OF_RANKS, "the ranks stop after the same step"
    assert len({rank.pid for rank in record.ranks}) == 2
    assert [row["step"] for row in read_history(path)] == [*range(1, STEPS_OF_RANKS + 1)]
