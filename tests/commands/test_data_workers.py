"""Data that workers read, by the command line: resumes, ends and settings that do not fit."""

import signal
from pathlib import Path

import pytest
from command_line import only_run, wait_until

DATA = '''
import os, random, signal, time
import numpy as np, torch
from torch.utils.data import Dataset, IterableDataset

class Points(Dataset):
    """Slow items with augmentations from everywhere; `what` happens in place of item 7."""

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

class Stream(IterableDataset):
    def __iter__(self):
        for item in range(100):
            noise = random.random() + np.random.rand() + torch.rand(()).item()
            yield torch.full((4,), item + noise), torch.full((1,), float(item))
'''
MAP = """
_target_: ampsweep.data.map_dataset.MapDataset
name: points
batch_size: 4
num_workers: 0
prefetch_factor: null
train: {_target_: own_data.Points, what: nothing}
val: {_target_: own_data.Points, what: nothing, length: 5}
"""
STREAM = """
_target_: ampsweep.data.stream_dataset.StreamDataset
name: stream
batch_size: 4
num_workers: 1
train: {_target_: own_data.Stream}
val: {_target_: own_data.Stream}
num_val_batches: 2
"""
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
    files = {"own_data.py": DATA, "conf/data/points.yaml": MAP, "conf/data/stream.yaml": STREAM}
    for name, text in {**files, "conf/model/net.yaml": NET}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    import sys

    sys.modules.pop("own_data", None)


def trained(train, *arguments):
    """The run of a command, in a directory of its own."""
    directory = f"outputs/{len(trained.__dict__)}"
    trained.__dict__[directory] = True
    ended = train(*OWN, f"output_dir={directory}", *arguments)
    return ended, only_run(directory)


def test_workers_change_neither_losses_nor_memory(train):
    runs = [trained(train, "data=points", "trainer.steps=12", f"data.num_workers={number}")[1] for number in (0, 2)]
    assert [run.record.environment["data_workers"] for run in runs] == [0, 2]
    columns = [run.column("train/loss") | run.column("val/loss") for run in runs]
    assert columns[0] == columns[1]
    assert len({run.record.memory.peak_bytes for run in runs}) == 1
    assert [run.record.prediction.error_pct for run in runs] == [0.0] * 2


@pytest.mark.parametrize("data", ["points", "stream"])
def test_a_resumed_run_reads_the_batches_that_are_left(train, data):
    settings = (f"data={data}", "data.num_workers=1", "predict.with_runs=false")
    _, whole = trained(train, *settings, "trainer.steps=12")
    _, first = trained(train, *settings, "trainer.steps=7", "trainer.checkpoint_every=7")
    _, second = trained(train, *settings, "trainer.steps=12", f"resume={first.directory}")
    losses = whole.column("train/loss")
    assert second.column("train/loss") == {step: losses[step] for step in range(8, 13)}


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("raises", "RuntimeError: no such point (own_data.py, line 26)"),
        ("is_killed", "DataLoader worker (pid"),  # torch has two sentences for it
    ],
)
def test_a_worker_that_dies_is_one_sentence(train, what, told):
    settings = ("data.num_workers=2", f"data.train.what={what}", "trainer.steps=40", "predict.with_runs=false")
    ended, run = trained(train, "data=points", *settings)
    assert ended.code == 1
    assert run.record.status == "failed"
    assert told in run.record.error
    assert [line for line in ended.said if told in line] == ended.said, "and nothing else is said"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("data.num_workers=-1", "data.num_workers=-1: must not be negative"),
        ("data.prefetch_factor=0", "data.prefetch_factor=0: must be greater than 0"),
        ("data.num_workers=0 data.prefetch_factor=2", "data=points: prefetch_factor=2 needs workers, but num_work"),
        ("data.num_workers=two", "data=points: num_workers must be a whole number, got two"),
        ("data.num_workers=null", "data=points: num_workers must be a whole number, got None"),
    ],
)
def test_settings_that_do_not_fit_are_refused(train, setting, told):
    ended = train(*OWN, "data=points", *setting.split())
    assert ended.code == 2
    assert told in ended.err
    assert len(ended.err.splitlines()) == 1


LONG = (*OWN, "data=points", "data.num_workers=2", "trainer.steps=100000", "predict.with_runs=false")


def begun(start):
    """A training whose workers have begun."""
    one = start(*LONG, PYTHONPATH=".")
    wait_until(lambda: len(one.alive()) >= 4, "there are the command, its training and two workers")
    wait_until(lambda: [*Path("outputs").rglob("history.jsonl")], "a row is logged")
    return one


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_after_the_checkpoint(start):
    one = begun(start)
    one.ctrl_c()
    ended = one.finish()
    assert ended.code == 1
    assert ended.said == []
    assert "interrupted: SIGINT after step" in ended.out
    assert (only_run().directory / "checkpoints/last.pt").is_file()
    assert one.alive() == []


@pytest.mark.slow
def test_a_killed_training_leaves_no_worker(start):
    one = begun(start)
    one.signal(signal.SIGKILL)
    wait_until(lambda: one.alive() == [], "the workers are gone")
    one.finish()
