"""A lack of memory is a result: where it came up and how much was asked for, in the record and in every report."""

import json
import signal

import pytest
from command_line import MLP, all_runs, only_run, only_sweep
from recorded_sweeps import SYNTHETIC
from wandb_file import read_wandb_file

from ampsweep.config.compose import compose_one
from ampsweep.launch.isolated_process import ChildExit
from ampsweep.record import RunRecord
from ampsweep.run.isolated_run import complete_record
from ampsweep.run.request import RunRequest

KIB = 2**10 / 2**30
"""In the unit of the limit."""
SMALL = (
    *("model=mlp_small", *SYNTHETIC, "data.batch_size=8", "device=cpu", "trainer.steps=4", "trainer.log_every=1"),
    "predict.with_runs=false",
)


def limited(kib):
    return f"trainer.memory_limit_gib={kib * KIB}"


@pytest.mark.parametrize(
    ("kib", "batch_size", "phase", "step"),
    [(1, 8, "build", None), (1500, 512, "forward", 1), (1000, 8, "optimizer", 1), (3000, 512, "backward", 2)],
)
def test_a_single_run_says_where_it_ended_and_how_much_it_asked_for(kib, batch_size, phase, step, train):
    ended = train(*SMALL, "tracking=disabled", limited(kib), f"data.batch_size={batch_size}")
    record = only_run().record
    assert (ended.code, record.status) == (0, "oom")
    oom = record.oom
    assert (oom.phase, oom.step, oom.limit_bytes) == (phase, step, kib * 2**10)
    assert oom.in_use_bytes <= oom.limit_bytes < oom.in_use_bytes + oom.requested_bytes
    where = "while building" if step is None else f"in {phase} of step {step}"
    assert record.error.startswith(f"out of memory {where}: ")
    assert f"oom: out of memory {where}: " in ended.out


def test_every_report_of_a_sweep_shows_it(train):
    ended = train("-m", *SMALL, "tracking.mode=offline", limited(1400), "data.batch_size=512,8")
    assert ended.code == 0
    runs = all_runs()
    assert [run.record.status for run in runs] == ["oom", "completed"]
    error, sweep = runs[0].record.error, only_sweep()
    assert error in ended.words
    assert error in (sweep / "comparison.md").read_text().replace("\\", "")
    assert error in (sweep / "comparison.html").read_text()
    workloads = json.loads((sweep / "comparison.json").read_text())["workloads"]
    (lost,) = [run["oom"] for workload in workloads for run in workload["runs"] if run["oom"] is not None]
    assert (lost["phase"], lost["step"]) == (runs[0].record.oom.phase, 1)
    tracked = read_wandb_file(runs[0].directory / runs[0].record.wandb.directory)
    assert (tracked.exit_code, tracked.summary["status"]) == (0, "oom")
    assert tracked.summary["oom"] | {"sentence": error} == lost


def test_memory_that_does_not_hold_the_model_is_an_outcome(train):
    assert train("-m", *MLP, "trainer.steps=2", "model.hidden_size=1000000").code == 0
    record = only_run().record
    assert (record.status, record.oom.phase, record.oom.limit_bytes) == ("oom", "build", None)
    assert record.oom.requested_bytes == 10**12 * 4
    assert record.oom.in_use_bytes > 2**20
    assert record.error.startswith("out of memory while building: 3.638 TiB asked for with ")


def test_a_run_that_the_kernel_killed_for_its_memory_is_out_of_memory(tmp_path):
    request = RunRequest(compose_one([*SMALL, "tracking=disabled"]), tmp_path)
    killed = ChildExit(-signal.SIGKILL, None, "killed by SIGKILL", None, stopped_by="", oom_killed=True)
    record = complete_record(request, killed)
    assert record == RunRecord.read(tmp_path)
    assert (record.status, record.oom.phase) == ("oom", None)
    assert "the kernel counts a process killed for lack of memory" in record.error
    other = ChildExit(-signal.SIGKILL, None, "killed by SIGKILL", None, stopped_by="")
    assert complete_record(request, other).status == "failed"


def test_a_watched_run_has_no_speed_and_says_why(train):
    ended = train(*SMALL, "tracking=disabled", limited(4000))
    record = only_run().record
    assert (ended.code, record.status) == (0, "completed")
    assert not [key for key in record.summary if key.startswith(("perf/", "instrumentation/"))]
    assert "memory/peak_allocated_gib" in record.summary
    assert record.contamination.verdict == "contaminated"
    assert "every operator is watched" in record.contamination.reasons[0]
    assert "its speed does not count: under trainer.memory_limit_gib" in ended.out
