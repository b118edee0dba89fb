"""Runs that are jobs of Slurm, as who has submitted them sees them: by their records and by the queue."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ampsweep.commands.run_watch import RunWatch, complete_record_of_job
from ampsweep.config.compose import compose_one
from ampsweep.config.identity import run_directory_name
from ampsweep.launch.slurm import JobState
from ampsweep.record import RunRecord, now
from ampsweep.record.parts import Attempt
from ampsweep.run.request import new_record

CONFIG = compose_one(["model=mlp_small", "tracking=disabled"])
POLLED = "slurmstepd-vm: error: StepId=4.0 exceeded memory limit (1255546880 > 1073741824), being killed\n"
COUNTED = "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some of the step tasks have been OOM Killed.\n"


def begun(directory: Path, job: str | None = "4", *, ended: bool = False, status: str = "interrupted") -> Path:
    """The directory of a run whose process has begun it, and perhaps ended it."""
    record = new_record(CONFIG, device="cpu")
    record.attempts.append(Attempt(started_at=now(), slurm_job=job))
    record.status, record.ended_at = status, now() if ended else None
    directory.mkdir(parents=True, exist_ok=True)
    record.write(directory)
    return directory


@pytest.mark.parametrize(
    ("state", "said", "status", "error"),
    [
        (
            *("FAILED", POLLED, "oom"),
            "out of memory: Slurm killed job 4, which had 1.17 GiB, for its memory limit of 1.00 GiB (--mem)",
        ),
        ("OUT_OF_MEMORY", "", "oom", "out of memory: Slurm killed job 4 for its memory limit of 1.00 GiB (--mem)"),
        ("FAILED", COUNTED, "oom", "out of memory: Slurm killed job 4 for its memory limit of 1.00 GiB (--mem)"),
        ("TIMEOUT", "", "interrupted", "Slurm's job 4 ended TIMEOUT; its log: {log}"),
        ("CANCELLED", "", "interrupted", "Slurm's job 4 ended CANCELLED; its log: {log}"),
        ("NODE_FAIL", "", "failed", "Slurm's job 4 ended NODE_FAIL; its log: {log}"),
    ],
)
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_job_that_was_killed_is_recorded(state, said, status, error, has_begun, tmp_path):
    directory, log = tmp_path / "run", tmp_path / "log"
    log.write_text(said)
    directory.mkdir()
    if has_begun:
        begun(directory)
    record = complete_record_of_job(directory, CONFIG, JobState("4", state, 2**30), log)
    assert record == RunRecord.read(directory)
    assert (record.status, record.error) == (status, error.format(log=log))
    assert record.ended_at is not None
    assert [attempt.slurm_job for attempt in record.attempts] == ["4"]
    assert (record.oom is not None) == (status == "oom")


def test_what_a_run_said_of_its_own_end_stands(tmp_path):
    directory = begun(tmp_path / "run", ended=True, status="diverged")
    before = RunRecord.read(directory)
    assert complete_record_of_job(directory, CONFIG, JobState("4", "TIMEOUT"), tmp_path / "log") == before


def test_a_job_taken_away_before_it_began_is_no_run(tmp_path):
    assert complete_record_of_job(tmp_path / "run", CONFIG, JobState("4", "CANCELLED"), tmp_path / "log") is None
    assert not (tmp_path / "run").exists()
    assert complete_record_of_job(tmp_path / "run", CONFIG, JobState("4", "FAILED"), tmp_path / "log") is not None


class Queue:
    """A queue whose one job is what a test says."""

    jobs = ("4",)

    def __init__(self, log: Path) -> None:
        self.now, self.ended, self._log = JobState("4", "PENDING"), False, log

    def look(self) -> None:
        pass

    def state(self, job: str) -> JobState:
        return self.now

    def is_over(self, job: str) -> bool:
        return self.ended or self.now.is_over

    def has_result(self, job: str) -> bool:
        return self.ended

    def num_waiting(self) -> int:
        return int(self.now.waits)

    def log(self, job: str) -> Path:
        return self._log


class Shown:
    """A display that keeps what it was told."""

    def __init__(self) -> None:
        self.lines: list[object] = []
        self.going_on = self.queued = 0

    def say(self, line: str) -> None:
        self.lines.append(line)

    def run_ends(self, config: object, record: RunRecord) -> None:
        self.lines.append(record.status)

    def runs_elsewhere(self, num_running: int) -> None:
        self.going_on = num_running

    def runs_queued(self, num_waiting: int) -> None:
        self.queued = num_waiting


@pytest.fixture
def watched(tmp_path):
    """A run that a watch follows as its job goes on; `look()` is one look of the watch."""
    queue, shown = Queue(tmp_path / "log"), Shown()
    watch = RunWatch(tmp_path, [CONFIG], shown, queue)

    def look() -> None:
        watch._look()
        watch._look_at_jobs(queue)

    return SimpleNamespace(directory=tmp_path / run_directory_name(CONFIG), queue=queue, shown=shown, look=look)


def test_a_requeued_run_has_not_ended(watched):
    watched.look()
    assert watched.shown.queued == 1
    watched.queue.now = JobState("4", "RUNNING")
    begun(watched.directory)
    watched.look()
    assert (watched.shown.going_on, watched.shown.queued) == (1, 0)
    begun(watched.directory, ended=True)
    watched.queue.now = JobState("4", "PENDING")
    watched.look()
    assert (watched.shown.lines, watched.shown.going_on, watched.shown.queued) == ([], 0, 1)
    begun(watched.directory)
    watched.queue.now = JobState("4", "RUNNING")
    watched.look()
    assert watched.shown.going_on == 1
    begun(watched.directory, ended=True, status="completed")
    watched.look()
    watched.queue.ended = True
    watched.look()
    assert watched.shown.lines == ["completed"]


def test_a_run_interrupted_for_good_is_told_once(watched):
    begun(watched.directory, ended=True)
    watched.look()
    assert watched.shown.lines == []
    watched.queue.ended = True
    watched.look()
    watched.look()
    assert watched.shown.lines == ["interrupted"]


def test_a_run_whose_job_was_killed_is_told_once(watched):
    begun(watched.directory)
    watched.queue.now = JobState("4", "TIMEOUT")
    watched.look()
    watched.look()
    assert watched.shown.lines == ["interrupted"]


def test_a_job_cancelled_in_the_queue_is_told(watched):
    watched.queue.now = JobState("4", "CANCELLED")
    watched.look()
    assert watched.shown.lines == [f"Slurm's job 4 ended CANCELLED before {watched.directory.name} began"]
    assert not watched.directory.exists()
