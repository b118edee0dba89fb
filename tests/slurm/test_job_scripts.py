"""The job scripts of docs/cluster.md, submitted to a real Slurm of one node."""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import OneNodeSlurm

from ampsweep.record import RunRecord, find_records, read_history

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]  # the first one starts all jobs

PATIENCE_S = 240.0
SMALL = (
    *("model=custom", "model._target_=ordered_models.Ordered", "+model.orders=orders", "data=digits"),
    *("trainer.steps=16", "trainer.log_every=1", "trainer.eval_every=null", "optimizer.lr=0.01"),
    *("tracking=disabled", "predict.with_runs=false", "device=cpu"),
)
STEPS_OF_RANKS = 500
"""Ranks agree to stop a quarter of a second or 100 steps after they were asked."""


@pytest.fixture(scope="module")
def scripts(repository: Path) -> list[str]:
    """The scripts of the page, in their order."""
    found = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", (repository / "docs/cluster.md").read_text(), re.DOTALL)
    assert len(found) == 2
    return found


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
        told = self.cluster.command("scontrol", "--oneliner", "show", "job", self.job)
        return re.search(r"JobState=(\S+)", told)[1]

    def runs(self) -> list[tuple[Path, RunRecord]]:
        return find_records(self.directory / "outputs").records


class Submit:
    """Submits scripts of the page as they are, but without GPUs, and with a training of a second."""

    def __init__(self, cluster: OneNodeSlurm, environment: dict[str, str], repository: Path, top: Path) -> None:
        self._cluster, self._environment, self._repository, self._top = cluster, environment, repository, top

    def __call__(self, name: str, script: str, *changes: str, options: Sequence[str] = ()) -> BatchJob:
        directory = self._top / name
        for folder in ("orders", "t"):
            (directory / folder).mkdir(parents=True)
        script = re.sub(r"--(gpus-per-node|cpus-per-task|nodes|ntasks-per-node)=\S+ ?", "", script)
        script = re.sub(r"#SBATCH *\n", "", script).replace("torchrun", "python -m torch.distributed.run")
        training = " ".join([f"{self._repository}/train.py", "-m" if " -m seed" in script else "", *SMALL, *changes])
        script = re.sub(r"train\.py.*", training, script).replace("python ", f"{sys.executable} ")
        (directory / "job.sh").write_text(script)
        words = ("sbatch", "--parsable", f"--chdir={directory}", *options, str(directory / "job.sh"))
        # None of the jobs waits for another's lock of the device.
        environment = self._environment | {"TMPDIR": str(directory / "t")}
        return BatchJob(self._cluster, directory, self._cluster.command(*words, environment=environment).strip())


@dataclass(frozen=True)
class Jobs:
    """The jobs of this module, all of which have ended."""

    sweep: BatchJob
    single: BatchJob
    ranks: BatchJob


@pytest.fixture(scope="module")
def jobs(
    cluster: OneNodeSlurm,
    environment: dict[str, str],
    repository: Path,
    scripts: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Jobs:
    submit = Submit(cluster, environment, repository, tmp_path_factory.mktemp("jobs"))
    of_sweep, of_ranks = scripts
    sweep = submit("sweep", of_sweep, "precision=fp32,amp_bf16", "seed=0")
    single = submit("single", of_sweep.replace(" -m seed=0,1,2 precision=fp32,amp_bf16", ""), "seed=1")
    ranks = submit("ranks", of_ranks, "parallel=ddp", f"trainer.steps={STEPS_OF_RANKS}", options=["--ntasks=2"])
    for one in (sweep, single, ranks):
        (one.directory / "orders/job").write_text("wait")
    for one in (single, sweep, ranks):
        obeyed = one.directory / "orders/job.obeyed"
        until = time.monotonic() + PATIENCE_S
        while not obeyed.exists():
            assert time.monotonic() < until, one.log
            time.sleep(0.1)
        if one is sweep:
            cluster.command("scancel", "--signal=USR1", f"{one.job}.0")
        else:
            cluster.command("scontrol", "requeue", one.job)
        time.sleep(1)
        (one.directory / "orders/job").unlink()  # the step ends, in which the signals found it
    sweep.wait_for("FAILED")  # it has ended by itself, with a run that was interrupted
    cluster.command("scontrol", "requeue", sweep.job)
    for one in (sweep, single, ranks):
        one.wait_for("COMPLETED")
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
