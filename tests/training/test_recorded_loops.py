"""`ampsweep.record` around a hand-written loop has the figures of the suite's own, to the byte."""

import pytest
import torch
from assembled import MLP, assemble, trained
from hand_loop import DTYPES

import ampsweep
from ampsweep.records import RunRecord, read_history


def numbers(rows, *keys):
    return [[row.get(key) for key in ("step", *keys)] for row in rows]


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16"])
def test_memory_and_rows_are_those_of_the_suites_own_loop(mode, tmp_path):
    overrides = (*MLP, f"precision={mode}", "trainer.steps=8", "trainer.log_every=2", "optimizer=adamw")
    suite, own = trained(*overrides), assemble(*overrides)
    model, optimizer, scaler = own.built.model, own.optimizer, own.built.precision.scaler
    with ampsweep.record(model, optimizer, scaler=scaler, log_every=2, warmup_steps=2, directory=tmp_path) as run:
        for index in range(8):
            batch = own.built.data.train_batch(index)
            with run.step():
                with torch.autocast("cpu", DTYPES.get(mode), enabled=mode in DTYPES):
                    loss = own.built.task.loss(model, batch)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            run.log(loss=loss)
    record, expected = RunRecord.read(run.directory), suite.instruments.memory()
    assert (record.status, record.arm) == ("completed", mode)
    assert (record.memory.peak_bytes, record.memory.peak) == (expected.peak_bytes, expected.peak)
    assert record.proof.flops == suite.instruments.proof().flops
    keys = ("train/loss", "amp/scale", "amp/growth_tracker", "amp/applied_steps")
    assert numbers(read_history(run.directory), *keys) == numbers(suite.rows, *keys)
