"""Under Hydra's launchers for several processes the records and the comparison are the same."""

import json
import sys
from pathlib import Path

import pytest
from command_line import all_runs, only_sweep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="submitit starts its jobs by a POSIX shell"),
]

NOTES = Path("notes")


@pytest.mark.parametrize(
    "launcher",
    [
        ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
        ("hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"),
    ],
    ids=["joblib", "submitit_local"],
)
def test_the_runs_come_one_after_the_other_and_are_compared(launcher, start, tmp_path):
    own = ("model=custom", "model._target_=own_models.Noted", f"+model.notes={tmp_path / NOTES}", "data=digits")
    length = ("trainer.steps=10", "trainer.log_every=5", "tracking=disabled")
    ended = start("-m", *own, *length, "precision=fp32,amp_bf16", *launcher).finish()
    assert ended.code == 0
    runs = sorted(all_runs(), key=lambda run: run.record.arm)
    assert [(run.record.arm, run.record.status) for run in runs] == [("amp_bf16", "completed"), ("fp32", "completed")]
    assert [[row["step"] for row in run.history] for run in runs] == [[5, 10], [5, 10]]
    assert runs[0].record.pair_key == runs[1].record.pair_key

    steps = sorted(tuple(map(int, line.split())) for line in NOTES.read_text().splitlines())
    processes = [process for _, process in steps]
    assert len(processes) == 20
    assert len(set(processes[:10])) == len(set(processes[10:])) == 1, "both trained at once"
    assert set(processes) == {run.record.attempts[0]["pid"] for run in runs}

    comparison = json.loads((only_sweep() / "comparison.json").read_text())
    assert "1 of 1 pair completed" in json.dumps(comparison)
    assert "amp_bf16" in ended.out
