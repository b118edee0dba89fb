"""The jobs that submitit has submitted, in a queue whose answers are set."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("submitit")
from submitit.core.utils import UncompletedJobError, pickle_load
from submitit.slurm.slurm import SlurmJob

from ampsweep.commands import submitted_jobs
from ampsweep.commands.submitted_jobs import SubmittedJobs, refuse_queued
from ampsweep.config.errors import UserError
from ampsweep.launch.slurm import JobState

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Slurm is for Linux")

MULTIRUN = "hydra:\n  sweep: {dir: DIRECTORY}\n  launcher: {submitit_folder: '${hydra.sweep.dir}/.submitit/%j'}\n"


@pytest.fixture
def queue(tmp_path, monkeypatch) -> dict[str, JobState]:
    """What Slurm tells of the jobs of the multirun in `tmp_path`."""
    (tmp_path / "multirun.yaml").write_text(MULTIRUN.replace("DIRECTORY", str(tmp_path)))
    known: dict[str, JobState] = {}
    monkeypatch.setattr(submitted_jobs, "users_jobs", lambda: dict(known))
    monkeypatch.setattr(submitted_jobs, "_EVERY_S", 0.0)
    monkeypatch.setattr(submitted_jobs, "_EVERY_AT_MOST_S", 0.0)
    return known


def submit(directory: Path, *jobs: str) -> list[SlurmJob]:
    """Submit an array as submitit does, which tells of the array first."""
    return [SlurmJob(directory / ".submitit/%j", job) for job in ("12", *jobs)][1:]


def test_jobs_are_followed_in_the_order_of_their_points(queue, tmp_path):
    jobs, watcher = SubmittedJobs(tmp_path), SlurmJob.watcher
    with jobs.followed():
        submit(tmp_path, "12_0", "12_1", "12_2")
    assert SlurmJob.watcher is watcher
    assert jobs.jobs == ["12_0", "12_1", "12_2"]
    queue |= {"12_0": JobState("12_0", "RUNNING"), "12_1": JobState("12_1", "PENDING", "Resources")}
    jobs.look()
    assert [jobs.is_over(job) for job in jobs.jobs] == [False] * 3
    assert [job.job for job in jobs.waiting()] == ["12_1"]
    queue["12_0"] = JobState("12_0", "TIMEOUT")
    del queue["12_1"]  # Slurm forgets jobs some minutes after their end
    jobs.look()
    assert [jobs.is_over(job) for job in jobs.jobs] == [True, True, False]
    assert (jobs.state("12_1").state, jobs.state("12_2")) == ("UNKNOWN", None)


def test_the_launcher_waits_for_results_and_nothing_else(queue, tmp_path):
    jobs = SubmittedJobs(tmp_path)
    with jobs.followed():
        (one,) = submit(tmp_path, "12_0")
        queue["12_0"] = JobState("12_0", "TIMEOUT")
        jobs.look()
        assert jobs.is_over("12_0")
        assert not one.done(force_check=True), "it waits until the record is complete"
        jobs.close("12_0")
        assert one.done()
        outcome, result = pickle_load(one.paths.result_pickle)
    assert (outcome, result.return_value) == ("success", None)


def test_a_job_that_cannot_load_ends_no_other_jobs_wait(queue, tmp_path):
    jobs = SubmittedJobs(tmp_path)
    states = iter([JobState("12_1", "RUNNING"), JobState("12_1", "COMPLETED")])
    with jobs.followed():
        submit(tmp_path, "12_1")
        jobs.look = lambda: jobs._states.update({"12_1": next(states)})
        raise UncompletedJobError("no module named mine")
    assert next(states, None) is None


def test_what_goes_on_without_the_process_that_submitted_it(queue, tmp_path):
    jobs = SubmittedJobs(tmp_path)
    assert jobs.left() is None
    with jobs.followed():
        submit(tmp_path, "12_0", "12_1")
    queue |= {"12_0": JobState("12_0", "COMPLETED"), "12_1": JobState("12_1", "PENDING")}
    jobs.look()
    assert jobs.left() == (
        f"1 job of Slurm will be recorded without this process: `ampsweep report {tmp_path}` compares what is there, "
        "`scancel 12` ends what is left"
    )


def test_points_whose_jobs_are_queued_are_not_begun_twice(queue, tmp_path):
    refuse_queued(tmp_path)
    with SubmittedJobs(tmp_path).followed():
        submit(tmp_path, "12_0", "12_1")
    refuse_queued(tmp_path)  # nothing is in the queue any more
    queue |= {"12_0": JobState("12_0", "FAILED"), "12_1": JobState("12_1", "PENDING")}
    with pytest.raises(UserError, match=r"into=.*: Slurm's queue still has 1 job of it; .* `scancel 12`"):
        refuse_queued(tmp_path)
