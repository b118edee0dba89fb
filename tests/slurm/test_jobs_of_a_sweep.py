"""Twelve runs submitted to a real Slurm, whose jobs are requeued, warned, out of memory or out of time."""

import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from cluster import PATIENCE_S, TRAINING, wait_until

from ampsweep.records import find_records, read_history

pytestmark = [pytest.mark.slurm, pytest.mark.nightly, pytest.mark.timeout(600)]  # the first one starts all jobs

REQUEUED, WARNED, EATS, OUT_OF_TIME = "0", "1", "2", "3"
"""The jobs of the array to which something happens."""
POINTS = ("precision=fp32,amp_bf16",)
SLURM = (
    "hydra/launcher=submitit_slurm",
    *("hydra.launcher.timeout_min=11", "hydra.launcher.signal_delay_s=1", "hydra.launcher.max_num_timeout=1"),
    "hydra.launcher.mem_gb=3",  # a build of torch for CUDA takes more than one
    "hydra.launcher.setup=['export TMPDIR=$(mktemp -d)']",  # as many clusters do; the locks of devices are there
)


@pytest.fixture(scope="module")
def train(repository, environment):
    """`python train.py ARGUMENTS` in a directory, on the cluster's login node; returns what came of the multirun."""

    def train(directory, *arguments, meanwhile=lambda process: None):
        command = [sys.executable, str(repository / "train.py"), "-m", *TRAINING, *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, cwd=directory, **streams) as process:
            meanwhile(process)
            out, err = process.communicate(timeout=PATIENCE_S)
        (sweep,) = (path.parent for path in directory.glob("outputs/*/*/multirun.yaml"))
        runs = {(record.identity.seed, record.arm): (path, record) for path, record in find_records(sweep).records}
        return SimpleNamespace(directory=sweep, runs=runs, code=process.returncode, out=out, err=err)

    return train


@pytest.fixture(scope="module")
def submitted(cluster, train, tmp_path_factory):
    directory = tmp_path_factory.mktemp("submitted")
    orders = directory / "orders"
    orders.mkdir()
    for job in (REQUEUED, WARNED, OUT_OF_TIME):
        (orders / job).write_text("wait")
    (orders / EATS).write_text("eat")

    def trouble(process):
        def wait_for(job):
            wait_until(lambda: (orders / f"{job}.obeyed").exists() or process.poll() is not None)
            assert process.poll() is None, process.communicate()

        wait_for(OUT_OF_TIME)
        array = cluster.command("squeue", "--noheader", "--format=%F").split()[0]
        cluster.command("scontrol", "update", f"jobid={array}_{OUT_OF_TIME}", "EndTime=now+2")  # noticed within 30 s
        wait_for(WARNED)
        cluster.command("scancel", "--signal=USR2", f"{array}_{WARNED}.0")  # as Slurm itself does, to the step
        wait_for(REQUEUED)
        cluster.command("scontrol", "requeue", f"{array}_{REQUEUED}")
        time.sleep(1)
        # The signals found a step going on; now it ends, and the run goes no further.
        (orders / WARNED).unlink()
        (orders / REQUEUED).unlink()

    return train(directory, *SLURM, "seed=0,1,2,3,4,5", *POINTS, meanwhile=trouble)


@pytest.fixture(scope="module")
def uninterrupted(train, tmp_path_factory):
    """The two runs that were requeued, as they are without Slurm."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    (directory / "orders").mkdir()
    return train(directory, "seed=0", *POINTS)


def test_all_runs_are_recorded_and_compared(submitted):
    records = [record for _, record in submitted.runs.values()]
    assert len(records) == 12
    assert sorted(record.status for record in records) == [*["completed"] * 10, "interrupted", "oom"]
    assert {record.attempts[-1].slurm_job.partition("_")[2] for record in records} == {str(job) for job in range(12)}
    assert submitted.code == 1, "one run has no outcome"
    assert "amp_bf16" in (submitted.directory / "comparison.md").read_text()
    assert str(submitted.directory / "comparison.html") in submitted.out
    assert (submitted.directory / "comparison.html").stat().st_size > 10_000


def test_each_run_has_a_line_when_it_has_ended(submitted):
    lines = [line.split() for line in submitted.err.splitlines() if "/12 " in line]
    assert [line[0] for line in lines] == [f"{number}/12" for number in range(1, 13)]
    assert len({(line[1], line[3]) for line in lines}) == 12


@pytest.mark.parametrize(("arm", "stopped_by"), [("fp32", "SIGTERM"), ("amp_bf16", "SIGUSR2")])
def test_a_requeued_run_goes_on_bitwise(submitted, uninterrupted, arm, stopped_by):
    """Job 0 was requeued as for a preemption, job 1 had the warning that submitit has Slurm send before the end."""
    assert uninterrupted.code == 0, uninterrupted.err
    path, record = submitted.runs[0, arm]
    first, second = record.attempts
    assert (record.status, first.stopped_by, second.stopped_by) == ("completed", stopped_by, None)
    assert first.slurm_job == second.slurm_job
    assert 0 < second.from_step < 16
    assert _values(path) == _values(uninterrupted.runs[0, arm][0])
    assert [row["step"] for row in read_history(path)] == [*range(1, 17)]


def test_a_job_killed_by_its_memory_limit_is_oom(submitted):
    _, record = submitted.runs[1, "fp32"]
    assert record.status == "oom"
    job = record.attempts[-1].slurm_job
    limit = r"for its memory limit of 3.00 GiB \(--mem\)"
    assert re.fullmatch(rf"out of memory: Slurm killed job {job}, which had [\d.]+ GiB, {limit}", record.error)
    assert record.ended_at is not None


def test_a_job_killed_by_its_time_limit_is_interrupted(submitted):
    """Its step took longer than Slurm waits between SIGTERM and SIGKILL, so the run could not say so itself."""
    _, record = submitted.runs[1, "amp_bf16"]
    assert record.status == "interrupted"
    assert re.fullmatch(r"Slurm's job \d+_3 ended TIMEOUT; its log: .*", record.error)


def _values(directory):
    """The rows of a history without times and memory."""
    computed = ("step", "train/", "val/", "amp/")
    return [{key: value for key, value in row.items() if key.startswith(computed)} for row in read_history(directory)]
