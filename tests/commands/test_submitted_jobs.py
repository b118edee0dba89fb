"""The jobs that submitit has submitted, in a queue whose answers are set."""

import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("submitit")
from submitit.core.utils import UncompletedJobError

from ampsweep.commands import submitted_jobs
from ampsweep.commands.submitted_jobs import SubmittedJobs, refuse_queued
from ampsweep.config.errors import UserError
from ampsweep.launch.slurm import JobState

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Slurm is for Linux")


@pytest.fixture
def queue(monkeypatch) -> dict[str, JobState]:
    """What Slurm tells of jobs."""
    known: dict[str, JobState] = {}
    monkeypatch.setattr(submitted_jobs, "users_jobs", lambda: dict(known))
    monkeypatch.setattr(submitted_jobs, "_ASKED_EVERY_S", 0.0)
    monkeypatch.setattr(submitted_jobs, "_RESULTS_WITHIN_S", 0.05)
    return known


def submit(directory: Path, *jobs: str) -> None:
    """Leave the files that submitit has of jobs of an array."""
    for job in jobs:
        folder = directory / ".submitit" / job
        folder.mkdir(parents=True)
        (folder / f"{job}_submitted.pkl").touch()


def test_jobs_are_followed_in_the_order_of_their_points(queue, tmp_path):
    submit(tmp_path, "9_0")
    jobs = SubmittedJobs(tmp_path)
    submit(tmp_path, *(f"12_{number}" for number in range(12)))
    queue |= {"12_0": JobState("12_0", "RUNNING"), "12_1": JobState("12_1", "PENDING")}
    jobs.look()
    assert jobs.jobs == [f"12_{number}" for number in range(12)], "and not those of an earlier submission"
    assert [job for job in jobs.jobs if jobs.is_over(job)] == []
    assert jobs.num_waiting() == 1
    queue["12_0"] = JobState("12_0", "TIMEOUT")
    del queue["12_1"]  # Slurm forgets jobs some minutes after their end
    jobs.look()
    assert [job for job in jobs.jobs if jobs.is_over(job)] == ["12_0", "12_1"]
    assert (jobs.state("12_1").state, jobs.state("12_2")) == ("UNKNOWN", None)


def test_a_job_that_left_no_result_ends_no_other_jobs_wait(queue, tmp_path):
    jobs = SubmittedJobs(tmp_path)
    submit(tmp_path, "12_0", "12_1")
    queue |= {"12_0": JobState("12_0", "TIMEOUT"), "12_1": JobState("12_1", "RUNNING")}
    end = threading.Timer(0.2, lambda: queue.update({"12_1": JobState("12_1", "COMPLETED")}))
    end.start()
    jobs.look()
    with jobs.waited_for():
        raise UncompletedJobError("Job 12_0 did not produce any output: TIMEOUT")
    assert queue["12_1"].state == "COMPLETED"


def test_without_accounting_the_wait_ends_with_the_jobs(queue, tmp_path):
    jobs = SubmittedJobs(tmp_path)
    submit(tmp_path, "12_0")
    queue["12_0"] = JobState("12_0", "OUT_OF_MEMORY")
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            jobs.look()

    thread = threading.Thread(target=watch)
    thread.start()
    began_s = time.monotonic()
    with jobs.waited_for():
        time.sleep(30)
    is_over.set()
    thread.join()
    assert time.monotonic() - began_s < 20


def test_ctrl_c_is_passed_on(queue, tmp_path):
    jobs = SubmittedJobs(tmp_path)
    with pytest.raises(KeyboardInterrupt), jobs.waited_for():
        raise KeyboardInterrupt


def test_what_goes_on_without_the_process_that_submitted_it(queue, tmp_path):
    jobs = SubmittedJobs(tmp_path)
    assert jobs.left() is None
    submit(tmp_path, "12_0", "12_1")
    queue |= {"12_0": JobState("12_0", "COMPLETED"), "12_1": JobState("12_1", "PENDING")}
    jobs.look()
    assert jobs.left() == (
        f"1 job of Slurm will be recorded without this process: `ampsweep report {tmp_path}` compares what is there, "
        "`scancel 12` ends what is left"
    )


def test_points_whose_jobs_are_queued_are_not_begun_twice(queue, tmp_path):
    refuse_queued(tmp_path)
    submit(tmp_path, "12_0", "12_1")
    refuse_queued(tmp_path)  # nothing is in the queue any more
    queue |= {"12_0": JobState("12_0", "FAILED"), "12_1": JobState("12_1", "PENDING")}
    with pytest.raises(UserError, match=r"into=.*: Slurm's queue still has 1 job of it; .* `scancel 12`"):
        refuse_queued(tmp_path)
