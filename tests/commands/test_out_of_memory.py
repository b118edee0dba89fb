"""A lack of memory is a result: where it came up and what was asked for, in the record, the reports and W&B."""

import json
import signal

import pytest
from command_line import all_runs, only_run, only_sweep
from wandb_file import read_wandb_file

from ampsweep.config.compose import compose_one
from ampsweep.launch.isolated import ChildExit
from ampsweep.record import RunRecord
from ampsweep.run.own_process import complete_record
from ampsweep.run.request import RunRequest

KIB = 2**10 / 2**30
"""In the unit of the limit."""
MLP = (
    "model=mlp_small",
    "data=synthetic",
    "data.in_features=32",
    "data.out_features=32",
    "data.num_batches=1",
    "data.batch_size=8",
    "device=cpu",
    "trainer.steps=4",
    "trainer.log_every=1",
)


def limited(kib):
    return f"trainer.memory_limit_gib={kib * KIB}"


@pytest.mark.parametrize(
    ("kib", "batch_size", "phase", "step"),
    [
        (1, 8, "build", None),
        (100, 8, "build", None),
        (1500, 512, "forward", 1),
        (500, 8, "backward", 1),
        (1000, 8, "optimizer", 1),
        (3000, 512, "backward", 2),
    ],
)
def test_a_single_run_says_where_it_ended_and_of_what(kib, batch_size, phase, step, train):
    ended = train(*MLP, "tracking=disabled", limited(kib), f"data.batch_size={batch_size}")
    record = only_run().record
    assert (ended.code, record.status) == (0, "oom")
    oom = record.oom
    assert (oom.phase, oom.step, oom.limit_bytes) == (phase, step, kib * 2**10)
    assert oom.in_use_bytes <= oom.limit_bytes < oom.in_use_bytes + oom.requested_bytes
    where = "while building" if step is None else f"in {phase} of step {step}"
    assert record.error.startswith(f"out of memory {where}: ")
    assert f"oom: out of memory {where}: " in ended.out


def test_the_sweep_goes_on_and_every_report_tells_of_it(train):
    ended = train("-m", *MLP, "tracking.mode=offline", limited(1400), "data.batch_size=512,8")
    assert ended.code == 0
    runs = all_runs()
    assert [run.record.status for run in runs] == ["oom", "completed"]
    error = runs[0].record.error
    sweep = only_sweep()
    assert error in " ".join(ended.out.split())
    assert error in (sweep / "comparison.md").read_text().replace("\\", "")
    assert error in (sweep / "comparison.html").read_text()
    entries = [run for one in json.loads((sweep / "comparison.json").read_text())["workloads"] for run in one["runs"]]
    assert [entry["oom"] is None for entry in entries if entry["status"] == "completed"] == [True]
    (lost,) = [entry["oom"] for entry in entries if entry["status"] == "oom"]
    assert (lost["phase"], lost["step"]) == (runs[0].record.oom.phase, 1)
    tracked = read_wandb_file(runs[0].directory / runs[0].record.wandb.directory)
    assert (tracked.exit_code, tracked.summary["status"]) == (0, "oom")
    assert tracked.summary["oom"] | {"sentence": error} == lost


def test_a_run_that_could_not_be_built_is_finished_in_wandb(train):
    assert train(*MLP, "tracking.mode=offline", limited(100)).code == 0
    run = only_run()
    tracked = read_wandb_file(run.directory / run.record.wandb.directory)
    assert (tracked.exit_code, tracked.summary["status"]) == (0, "oom")
    assert tracked.summary["oom"]["phase"] == "build"


def test_a_run_that_the_kernel_killed_for_its_memory_is_one_too(tmp_path):
    request = RunRequest(compose_one([*MLP, "tracking=disabled"]), tmp_path)
    record = complete_record(
        request, ChildExit(-signal.SIGKILL, None, "killed by SIGKILL", None, stopped_by="", oom_killed=True)
    )
    assert record == RunRecord.read(tmp_path)
    assert (record.status, record.oom.phase) == ("oom", None)
    assert "the kernel counts a process killed for lack of memory" in record.error
    assert (
        complete_record(request, ChildExit(-signal.SIGKILL, None, "killed by SIGKILL", None, stopped_by="")).status
        == "failed"
    )


def test_a_watched_run_has_no_speed_and_says_why(train):
    ended = train(*MLP, "tracking=disabled", limited(4000))
    record = only_run().record
    assert (ended.code, record.status) == (0, "completed")
    assert not [key for key in record.summary if key.startswith(("perf/", "instrumentation/"))]
    assert "memory/peak_allocated_gib" in record.summary
    assert record.contamination.verdict == "contaminated"
    assert "every operator is watched" in record.contamination.reasons[0]
    assert "its speed does not count: under trainer.memory_limit_gib" in ended.out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("trainer.memory_limit_gib=100000",), "trainer.memory_limit_gib=100000: cpu itself has "),
        (("trainer.memory_limit_gib=1", "trainer.compile=true"), "trainer.compile=false"),
        (("max_batch.search=true", limited(900)), "only a multirun can search"),
        (("-m", "max_batch.search=true"), "needs trainer.memory_limit_gib"),
    ],
)
def test_what_cannot_be_limited_or_searched_is_refused(changes, said, train, tmp_path):
    ended = train(*MLP, "tracking=disabled", *changes)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert said in line
    assert not list(tmp_path.iterdir())
