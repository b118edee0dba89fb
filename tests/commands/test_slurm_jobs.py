"""Jobs that submitit has submitted to Slurm, followed by a queue with given answers and by the records of the runs."""

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("submitit")
from submitit.core.utils import UncompletedJobError

from ampsweep.commands import submitted_jobs
from ampsweep.commands.run_watch import RunWatch, complete_record_of_job
from ampsweep.commands.submitted_jobs import SubmittedJobs, refuse_queued
from ampsweep.config.compose import compose_one
from ampsweep.config.errors import UserError
from ampsweep.config.identity import run_directory_name
from ampsweep.launch.slurm import JobState
from ampsweep.records import RunRecord, now
from ampsweep.records.sections import Attempt
from ampsweep.run.request import new_record

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Slurm is for Linux")


@pytest.fixture
def queue(monkeypatch):
    """`queue({job: state})` is news from Slurm; None: it has forgotten the job."""
    known = {}
    monkeypatch.setattr(submitted_jobs, "users_jobs", lambda: {job: state for job, state in known.items() if state})
    monkeypatch.setattr(submitted_jobs, "_ASKED_EVERY_S", 0.0)
    monkeypatch.setattr(submitted_jobs, "_RESULTS_WITHIN_S", 0.05)
    return lambda news: known.update({job: state and JobState(job, state) for job, state in news.items()})


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
    queue({"12_0": "RUNNING", "12_1": "PENDING"})
    jobs.look()
    assert jobs.jobs == [f"12_{number}" for number in range(12)], "and not those of an earlier submission"
    assert [job for job in jobs.jobs if jobs.is_over(job)] == []
    assert jobs.num_waiting() == 1
    queue({"12_0": "TIMEOUT", "12_1": None})  # Slurm forgets jobs some minutes after their end
    jobs.look()
    assert [job for job in jobs.jobs if jobs.is_over(job)] == ["12_0", "12_1"]
    assert (jobs.states["12_1"].state, jobs.states.get("12_2")) == ("UNKNOWN", None)


def test_a_job_without_a_result_ends_the_wait_for_no_other_job(queue, tmp_path):
    jobs, began_s = SubmittedJobs(tmp_path), time.monotonic()
    submit(tmp_path, "12_0", "12_1")
    queue({"12_0": "TIMEOUT", "12_1": "RUNNING"})
    threading.Timer(0.2, lambda: queue({"12_1": "COMPLETED"})).start()
    jobs.look()
    with jobs.waited_for():
        raise UncompletedJobError("Job 12_0 did not produce any output: TIMEOUT")
    assert time.monotonic() - began_s > 0.2
    with pytest.raises(KeyboardInterrupt), jobs.waited_for():
        raise KeyboardInterrupt


def test_without_accounting_the_wait_ends_with_the_jobs(queue, tmp_path):
    jobs, began_s = SubmittedJobs(tmp_path), time.monotonic()
    submit(tmp_path, "12_0")
    queue({"12_0": "OUT_OF_MEMORY"})
    looking = threading.Timer(0.1, lambda: [jobs.look() or time.sleep(0.02) for _ in range(50)])
    looking.start()
    with jobs.waited_for():
        time.sleep(30)
    looking.join()
    assert time.monotonic() - began_s < 20


def test_jobs_in_the_queue_are_named_and_never_begun_twice(queue, tmp_path):
    jobs = SubmittedJobs(tmp_path)
    assert jobs.left() is None
    refuse_queued(tmp_path)
    submit(tmp_path, "12_0", "12_1")
    refuse_queued(tmp_path)  # nothing is in the queue any more
    queue({"12_0": "COMPLETED", "12_1": "PENDING"})
    jobs.look()
    assert jobs.left() == (
        f"1 job of Slurm will be recorded without this process: `ampsweep report {tmp_path}` compares what is there, "
        "`scancel 12` ends what is left"
    )
    with pytest.raises(UserError, match=r"into=.*: Slurm's queue still has 1 job of it; .* `scancel 12`"):
        refuse_queued(tmp_path)


CONFIG = compose_one(["model=mlp_small", "tracking=disabled"])
POLLED = "slurmstepd-vm: error: StepId=4.0 exceeded memory limit (1255546880 > 1073741824), being killed\n"
COUNTED = "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some of the step tasks have been OOM Killed.\n"
KILLED = "out of memory: Slurm killed job 4{} for its memory limit of 1.00 GiB (--mem)"


def begun(directory: Path, *, ended: bool = False, status: str = "interrupted") -> Path:
    """The directory of a run whose process has begun it, and perhaps ended it."""
    record = new_record(CONFIG, device="cpu")
    record.attempts.append(Attempt(started_at=now(), slurm_job="4"))
    record.status, record.ended_at = status, now() if ended else None
    directory.mkdir(parents=True, exist_ok=True)
    record.write(directory)
    return directory


@pytest.mark.parametrize(
    ("state", "said", "status", "error"),
    [
        ("FAILED", POLLED, "oom", KILLED.format(", which had 1.17 GiB,")),
        ("FAILED", COUNTED, "oom", KILLED.format("")),
        ("OUT_OF_MEMORY", "", "oom", KILLED.format("")),
        ("TIMEOUT", "", "interrupted", "Slurm's job 4 ended TIMEOUT; its log: {log}"),
        ("NODE_FAIL", "", "failed", "Slurm's job 4 ended NODE_FAIL; its log: {log}"),
    ],
)
def test_a_job_that_was_killed_is_recorded(state, said, status, error, tmp_path):
    (log := tmp_path / "log").write_text(said)
    (empty := tmp_path / "empty").mkdir()
    for directory in (empty, begun(tmp_path / "begun")):
        record = complete_record_of_job(directory, CONFIG, JobState("4", state, 2**30), log)
        assert record == RunRecord.read(directory)
        assert (record.status, record.error) == (status, error.format(log=log))
        assert record.ended_at is not None
        assert [attempt.slurm_job for attempt in record.attempts] == ["4"]
        assert (record.oom is not None) == (status == "oom")


def test_the_recorded_end_of_a_run_stands_and_no_run_no_record(tmp_path):
    directory, never = begun(tmp_path / "run", ended=True, status="diverged"), tmp_path / "never"
    before = RunRecord.read(directory)
    assert complete_record_of_job(directory, CONFIG, JobState("4", "TIMEOUT"), tmp_path / "log") == before
    assert complete_record_of_job(never, CONFIG, JobState("4", "CANCELLED"), tmp_path / "log") is None
    assert not never.exists()
    assert complete_record_of_job(never, CONFIG, JobState("4", "FAILED"), tmp_path / "log") is not None


@pytest.fixture
def watched(queue, tmp_path):
    """A run that a watch follows as its job goes on: `look(state)` is one look of the watch."""
    jobs, lines = SubmittedJobs(tmp_path), []
    shown = SimpleNamespace(say=lines.append, run_ends=lambda config, record: lines.append(record.status))
    submit(tmp_path, "4")
    watch = RunWatch(tmp_path, [CONFIG], shown, jobs)

    def look(state, *, has_result=False):
        queue({"4": state})
        if has_result:
            (tmp_path / ".submitit/4/4_0_result.pkl").touch()
        jobs.look()
        watch._look()
        watch._look_at_jobs(jobs)
        return lines, (shown.num_elsewhere, shown.num_queued)

    return SimpleNamespace(directory=tmp_path / run_directory_name(CONFIG), look=look)


def test_a_run_that_ends_is_reported_once_and_a_requeued_one_has_not_ended(watched):
    assert watched.look("PENDING") == ([], (0, 1))
    for state, counts, ended in (("RUNNING", (1, 0), False), ("PENDING", (0, 1), True), ("RUNNING", (1, 0), False)):
        begun(watched.directory, ended=ended)
        assert watched.look(state) == ([], counts)
    begun(watched.directory, ended=True)
    assert watched.look("RUNNING")[0] == []
    watched.look("RUNNING", has_result=True)
    assert watched.look("COMPLETED")[0] == ["interrupted"]


def test_a_killed_job_is_reported_once(watched):
    watched.look("RUNNING")
    begun(watched.directory)
    watched.look("TIMEOUT")
    assert watched.look("TIMEOUT")[0] == ["interrupted"]


def test_a_job_that_is_cancelled_before_its_run_is_no_run(watched):
    assert watched.look("CANCELLED")[0] == [f"Slurm's job 4 ended CANCELLED before {watched.directory.name} began"]
    assert not watched.directory.exists()
