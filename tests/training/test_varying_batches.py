"""Figures of a training whose batches vary in size, or keep it waiting."""

import time
from types import SimpleNamespace

import torch
from assembled import CPU, LOGGED, assemble, composed
from torch.utils.data import Dataset

from ampsweep.observe.step import trace_step
from ampsweep.predict.run_prediction import predict_run


class Rows(Dataset):
    """Items of 1 to `most` rows."""

    def __init__(self, most, seconds=0.0):
        self.most, self.seconds = most, seconds

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(self.seconds)
        rows = torch.randn(1 + index * 7 % self.most, 64)
        return rows, rows.sum(1, keepdim=True)


def joined(items):
    return tuple(map(torch.cat, zip(*items, strict=True)))


def settings(rows):
    return (
        *("model=custom", "model._target_=torch.nn.Linear", "+model.in_features=64", "+model.out_features=1"),
        *("data=custom", "data._target_=ampsweep.data.map_dataset.MapDataset", "data.batch_size=4"),
        *(f"+data.{part}={{_target_: {__name__}.Rows, {rows}}}" for part in ("train", "val")),
        *(f"+data.collate={{_target_: {__name__}.joined, _partial_: true}}", "+data.num_workers=0"),
        *("task=regression", "optimizer=sgd", "trainer.steps=16"),
    )


def test_peak_memory_is_that_of_the_traced_step(tmp_path):
    chosen = settings("most: 37")
    second, whole = (assemble(*chosen, directory=tmp_path) for _ in range(2))
    second.trainer.model.train()
    second.trainer.train_step()
    with trace_step(second.built.model, *second.trainer.optimizers.values()) as traced:
        second.trainer.train_step()
    whole.train()
    memory = whole.trainer.instruments.memory()
    assert (memory.peak_bytes, memory.step) == (traced.result.peak_bytes, 2)


def test_a_prediction_of_a_batch_that_varies_vouches_for_none():
    varying, even = (composed(*LOGGED, *settings(f"most: {most}")) for most in (37, 1))
    assert [one.doubt for one in predict_run(varying, CPU).unvouched] == ["varies"]
    assert predict_run(even, CPU).unvouched is None


def test_waiting_for_data_is_told_apart_from_idling():
    waiting = assemble(*settings("most: 1, seconds: 0.01"))
    waiting.train()
    waiting.trainer.instruments._others = SimpleNamespace(verdict=lambda evidence: evidence)
    assert 0.5 < waiting.trainer.instruments.contamination(None).data_wait_share <= 1
