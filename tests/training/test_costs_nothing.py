"""Between two flushes the loop waits for the device no more often than a bare loop does."""

import gc
import os
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from assembled import CPU, Rows, StopAfter
from devices import needs_cuda
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ampsweep.config.schema import TrainerConfig
from ampsweep.data.synthetic import SyntheticRegression
from ampsweep.precision import Precision
from ampsweep.recorder.instruments import Instruments
from ampsweep.recorder.recorder import Recorder
from ampsweep.tasks.base import turns_of
from ampsweep.tasks.regression import Regression
from ampsweep.training.components.built import Built
from ampsweep.training.components.learning_rates import Schedule
from ampsweep.training.trainer import Trainer
from ampsweep.training.turns import trained_turns

WIDTH, BATCH, MAX_NORM = 16, 8, 1.0
FIRST, NUM_STEPS = 4, 12

OPTIMIZERS = {
    "adamw": lambda parameters, fused: torch.optim.AdamW(parameters, lr=1e-3, fused=fused),
    "sgd": lambda parameters, fused: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=fused),
}


@dataclass
class Parts:
    """A small training, the same every time."""

    optimizer_name: str
    fused: bool
    mode: str
    device: torch.device = CPU
    task: Regression = field(default_factory=Regression)
    more: dict = field(default_factory=dict)
    """More settings of the trainer."""
    rows: list = field(default_factory=list)

    def __post_init__(self):
        torch.manual_seed(0)
        self.precision = Precision(self.mode, self.device)
        self.model = self.precision.convert(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)))
        self.optimizer = OPTIMIZERS[self.optimizer_name](self.model.parameters(), self.fused)
        self.data = SyntheticRegression(
            in_features=WIDTH, out_features=WIDTH, num_batches=4, batch_size=BATCH, seed=0, device=self.device
        )

    def trainer(self, *, log_every, schedule="constant", kind=Trainer, log=None, save=None):
        settings = {"warmup_steps": 3, "max_grad_norm": MAX_NORM, "log_every": log_every, **self.more}
        config = TrainerConfig(steps=NUM_STEPS, **settings)
        instruments = Instruments(
            self.model,
            [self.optimizer],
            self.precision,
            self.data,
            warmup_steps=config.warmup_steps,
            samples_per_step=BATCH,
            tokens_per_step=None,
            is_fused=self.fused,
        )
        on_device, optimizers = instruments.counts_on_device, {"optimizer": self.optimizer}
        turns = trained_turns(turns_of(self.task), optimizers)
        return kind(
            Built(self.model, self.data, self.task, self.precision, optimizers, turns, NUM_STEPS),
            schedule=Schedule({"name": schedule}, [self.optimizer], NUM_STEPS, on_device=on_device),
            recorder=Recorder(instruments, self.precision, tracker=Rows(self.rows) if log is None else Rows(log=log)),
            config=config,
            save=save or (lambda trainer: None),
        )

    def bare_steps(self, first, last):
        """What anyone would write by hand."""
        mode, losses = self.precision.config, []
        scaler = self.precision.scaler
        for index in range(first, last):
            inputs, targets = self.data.train_batch(index)
            with torch.autocast(self.device.type, getattr(torch, mode.dtype), enabled=mode.autocast):
                loss = F.mse_loss(self.model(inputs).float(), targets)
            scaler.scale(loss).backward()
            scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
            scaler.step(self.optimizer)
            scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        return losses


def num_waits(work):
    """How often a number is read off a tensor, by torch's own kernels too: on a GPU each time the host waits."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        work()
    return sum(event.count for event in profiled.key_averages() if event.key == "aten::_local_scalar_dense")


def train_untraced_part(trainer, work=lambda train: train()):
    """Take the first four steps, one of which is traced, and hand the rest to `work`."""
    with trainer.instruments:
        trainer.train(StopAfter(FIRST))
        assert trainer.step == FIRST
        return work(lambda: trainer.train(StopAfter(NUM_STEPS + 1)))


def test_a_read_number_is_a_wait():
    assert num_waits(lambda: torch.ones(3).sum().item()) == 1


@pytest.mark.parametrize("log_every", [1, 1000])
@pytest.mark.parametrize("mode", ["fp32", "amp_fp16"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_the_loop_waits_as_often_as_a_bare_one(optimizer_name, fused, mode, log_every):
    bare, parts = Parts(optimizer_name, fused, mode), Parts(optimizer_name, fused, mode)
    bare.bare_steps(0, FIRST)
    expected = num_waits(lambda: bare.bare_steps(FIRST, NUM_STEPS))
    assert train_untraced_part(parts.trainer(log_every=log_every), num_waits) == expected
    assert len(parts.rows) == (NUM_STEPS if log_every == 1 else 2)  # the first part ends with a row as well


@pytest.mark.parametrize("mode", ["fp32", "amp_fp16"])
def test_clipping_by_value_reads_no_number(mode):
    plain, clipped = Parts("sgd", True, mode), Parts("sgd", True, mode, more={"max_grad_value": 0.01})
    expected, found = (train_untraced_part(parts.trainer(log_every=1000), num_waits) for parts in (plain, clipped))
    assert found == expected


def test_only_torchs_cpu_kernel_reads_a_rate_on_the_device():
    bare, parts = Parts("adamw", True, "amp_fp16"), Parts("adamw", True, "amp_fp16")
    (group,) = bare.optimizer.param_groups
    group["lr"] = torch.tensor(group["lr"])
    bare.bare_steps(0, FIRST)
    expected = num_waits(lambda: bare.bare_steps(FIRST, NUM_STEPS))
    assert train_untraced_part(parts.trainer(log_every=1000, schedule="cosine"), num_waits) == expected


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16"])
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_the_loop_computes_what_a_bare_one_computes(optimizer_name, mode):
    bare, parts = Parts(optimizer_name, True, mode), Parts(optimizer_name, True, mode)
    losses = bare.bare_steps(0, NUM_STEPS)
    train_untraced_part(parts.trainer(log_every=1))
    assert [row["train/loss"] for row in parts.rows] == [loss.item() for loss in losses]
    assert all(map(torch.equal, bare.model.parameters(), parts.model.parameters()))


def overhead(parts, **callbacks):
    trainer = parts.trainer(log_every=1, **callbacks)
    train_untraced_part(trainer)
    summary = trainer.instruments.summary()
    return summary["instrumentation/overhead_pct"] / 100 * 1e3 * BATCH / summary["perf/samples_per_sec"]


def sleep_ms(milliseconds):
    time.sleep(milliseconds / 1e3)


def test_the_overhead_is_the_time_in_our_own_calls(monkeypatch):
    monkeypatch.setattr("ampsweep.recorder.recorder.FLUSH_EVERY_S", 0)
    overhead_ms = overhead(Parts("sgd", True, "fp32"), log=lambda row, step: sleep_ms(20))
    assert 20 * 7 / 8 < overhead_ms < 60  # what follows the last step takes no step's time


def test_evaluation_and_checkpoints_are_no_overhead():
    class SlowValidation(Regression):
        def evaluate(self, model, batch):
            sleep_ms(20)
            return super().evaluate(model, batch)

    parts = Parts("sgd", True, "fp32")
    parts.task, parts.more = SlowValidation(), {"eval_every": 1, "checkpoint_every": 1}
    assert overhead(parts, save=lambda trainer: sleep_ms(20)) < 15


def test_waiting_for_data_is_told_apart():
    class SlowData:
        def __init__(self, data):
            self.data = data

        def train_batch(self, index):
            sleep_ms(10)
            return self.data.train_batch(index)

        def val_batches(self):
            return self.data.val_batches()

    parts = Parts("sgd", True, "fp32")
    parts.data, parts.more = SlowData(parts.data), {"grad_accum_steps": 2}
    trainer = parts.trainer(log_every=1)
    train_untraced_part(trainer)
    row, summary = parts.rows[-1], trainer.instruments.summary()
    assert 20 <= row["perf/data_wait_ms"] <= row["perf/step_ms"]
    assert summary["perf/data_wait_ms"] >= 20  # a mean, which one long sleep lifts above the median step


def train_measured(mode):
    trainer = Parts("adamw", True, mode).trainer(log_every=1, schedule="cosine")
    train_untraced_part(trainer)
    assert trainer.instruments.memory().allocator_peak_bytes > 0
    del trainer
    gc.collect()  # or else what it leaves in cycles may be freed in the measured step of the next one


def test_measuring_the_allocator_says_nothing_on_stderr():
    code = f"from {__name__} import train_measured; train_measured('fp32'); train_measured('amp_fp16')"
    folder = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": str(folder.parent)}  # of the marks that this file imports
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@contextmanager
def waiting(mode):
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Watched(Trainer):
    """May wait for the device only while it reads rows or evaluates, and to learn how the last steps ended."""

    def _record(self, step, ending, now_s):
        if self.step < self.num_steps:
            return super()._record(step, ending, now_s)
        with waiting("default"):
            return super()._record(step, ending, now_s)

    def _flush(self):
        with waiting("default"):
            return super()._flush()

    def evaluate(self):
        with waiting("default"):
            return super().evaluate()


def train_watched(parts, mode, **settings):
    def watch(train):
        torch.cuda.synchronize()
        with waiting(mode):
            train()

    train_untraced_part(parts.trainer(log_every=4, kind=Watched, **settings), watch)
    return parts.rows


@needs_cuda
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize(
    ("fused", "mode"),
    [(True, "fp32"), (True, "amp_bf16"), (True, "amp_fp16"), (False, "fp32"), (False, "amp_bf16")],
)
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_on_cuda_nothing_waits_between_two_flushes(optimizer_name, fused, mode, schedule):
    parts = Parts(optimizer_name, fused, mode, torch.device("cuda", 0))
    rows = train_watched(parts, "error", schedule=schedule)
    assert [row["step"] for row in rows] == [4, 8, 12]


@needs_cuda
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_on_cuda_clipping_by_value_waits_for_nothing(max_norm):
    limits = {"max_grad_value": 0.01, "max_grad_norm": max_norm}
    rows = train_watched(Parts("adamw", True, "amp_fp16", torch.device("cuda", 0), more=limits), "error")
    assert [row["step"] for row in rows] == [4, 8, 12]


@needs_cuda
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_on_cuda_a_scaler_waits_for_an_optimizer_not_fused(optimizer_name):
    parts = Parts(optimizer_name, False, "amp_fp16", torch.device("cuda", 0))
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        train_watched(parts, "warn")
    waits = [wait for wait in waits if "called a synchronizing CUDA operation" in str(wait.message)]
    assert {Path(wait.filename).name for wait in waits} == {"grad_scaler.py"}
    assert len(waits) == NUM_STEPS - FIRST


@needs_cuda
def test_on_cuda_several_rows_come_over_in_one_copy():
    parts = Parts("adamw", True, "amp_fp16", torch.device("cuda", 0))
    trainer = parts.trainer(log_every=1000, schedule="cosine")

    def read(train):
        for _ in range(3):
            trainer.step += 1
            with trainer.instruments.step():
                step = trainer.train_step(norm_wanted=True)
            trainer.recorder.log(trainer._values(step), trainer.step)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiled:
            trainer.recorder.flush()
        for row in parts.rows[-3:]:
            assert {"train/loss", "train/grad_norm", "train/lr", "amp/scale", "amp/skipped_steps"} <= row.keys()
        return sum(event.count for event in profiled.key_averages() if event.key.startswith("Memcpy DtoH"))

    assert train_untraced_part(trainer, read) == 1
