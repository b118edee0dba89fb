"""`data.num_workers`: batches, resumes and ends of trainings whose data is read by worker processes."""

import signal
import sys
from pathlib import Path

import pytest
from command_line import only_run, wait_until

DATA = '''
import os, random, signal, time
import numpy as np, torch
from torch.utils.data import Dataset

class Points(Dataset):
    """Slow items with noise from every generator; `what` happens in place of item 7."""

    def __init__(self, what="nothing", length=64):
        self.what, self.length = what, length

    def __len__(self):
        return self.length

    def __getitem__(self, item):
        time.sleep(0.002)
        if item == 7:
            getattr(self, self.what)()
        noise = 0.1 * (random.random() + np.random.rand() + torch.rand(()).item())
        return torch.full((4,), item / 64 + noise), torch.full((1,), item / 64)

    def nothing(self):
        pass

    def raises(self):
        raise RuntimeError("no such point")

    def is_killed(self):
        os.kill(os.getpid(), signal.SIGKILL)
'''
POINTS = (
    *("data=custom", "data._target_=ampsweep.data.map_dataset.MapDataset", "data.batch_size=4", "+data.num_workers=2"),
    *("+data.train._target_=own_data.Points", "+data.train.what=nothing", "+data.val._target_=own_data.Points"),
    "+data.val.length=5",
)
NET = """
_target_: torch.nn.Sequential
_args_:
  - {_target_: torch.nn.Linear, in_features: 4, out_features: 8}
  - {_target_: torch.nn.Dropout, p: 0.2}
  - {_target_: torch.nn.Linear, in_features: 8, out_features: 1}
name: net
"""
OWN = ("--config-dir", "conf", "model=net", "task=regression", "tracking=disabled", "trainer.log_every=1")


@pytest.fixture(autouse=True)
def own_data(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(DATA)
    (tmp_path / "conf/model").mkdir(parents=True)
    (tmp_path / "conf/model/net.yaml").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_data", None)


@pytest.fixture
def trained(train):
    """`trained(name, ARGUMENTS)`: how a command ended, and its run, which is in a directory of its own."""

    def trained(name, *arguments):
        ended = train(*OWN, f"output_dir={name}", *arguments)
        return ended, only_run(name)

    return trained


def test_workers_change_neither_losses_nor_memory(trained):
    runs = [trained(f"{n}", *POINTS, "trainer.steps=12", f"data.num_workers={n}")[1] for n in (0, 2)]
    assert [run.record.environment["data_workers"] for run in runs] == [0, 2]
    columns = [run.column("train/loss") | run.column("val/loss") for run in runs]
    assert columns[0] == columns[1]
    assert len({run.record.memory.peak_bytes for run in runs}) == 1
    assert [run.record.prediction.error_pct for run in runs] == [0.0] * 2


def test_a_resumed_run_reads_the_batches_that_are_left(trained):
    settings = (*POINTS, "data.num_workers=1", "predict.with_runs=false")
    _, whole = trained("whole", *settings, "trainer.steps=12")
    _, first = trained("first", *settings, "trainer.steps=7", "trainer.checkpoint_every=7")
    _, second = trained("second", *settings, "trainer.steps=12", f"resume={first.directory}")
    losses = whole.column("train/loss")
    assert second.column("train/loss") == {step: losses[step] for step in range(8, 13)}


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raises", "RuntimeError: no such point (own_data.py, line 26)"),
        ("is_killed", "DataLoader worker (pid"),  # torch has two sentences for it
    ],
)
def test_a_worker_that_dies_is_one_sentence(trained, what, said):
    settings = (f"data.train.what={what}", "trainer.steps=40", "predict.with_runs=false")
    ended, run = trained("run", *POINTS, *settings)
    assert (ended.code, run.record.status) == (1, "failed")
    assert said in run.record.error
    assert [line for line in ended.said if said in line] == ended.said, "and nothing else is said"


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["ctrl_c", "kill"])
def test_no_end_of_a_training_leaves_a_worker(how, start):
    command = start(*OWN, *POINTS, "trainer.steps=100000", "predict.with_runs=false", PYTHONPATH=".")
    wait_until(lambda: len(command.alive()) >= 4, "there are the command, its training and two workers")
    wait_until(lambda: [*Path("outputs").rglob("history.jsonl")], "a row is logged")
    if how == "ctrl_c":
        command.ctrl_c()
        ended = command.finish()
        assert (ended.code, ended.said) == (1, [])
        assert "interrupted: SIGINT after step" in ended.out
        assert (only_run().directory / "checkpoints/last.pt").is_file()
    else:
        command.signal(signal.SIGKILL)
    wait_until(lambda: command.alive() == [], "the workers have ended")
