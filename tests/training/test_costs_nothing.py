"""Between two flushes the loop waits for the device no more often than a bare loop does, and keeps nothing more."""

import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from amp_loops import amp_step
from assembled import GPT, StopAfter, assemble, trained
from devices import needs_cuda
from torch.profiler import ProfilerActivity, profile

from ampsweep.observe.step import trace_step

FIRST, NUM_STEPS, BATCH = 4, 12, 8
SMALL = (
    *("model=mlp_recipe", "model.hidden_size=16", "model.num_layers=2", "data.in_features=16", "data.out_features=16"),
    *(f"data.batch_size={BATCH}", "data.num_batches=4", f"trainer.steps={NUM_STEPS}", "trainer.warmup_steps=3"),
    "trainer.max_grad_norm=1",
)
RARELY = ("precision=amp_fp16", "trainer.log_every=1000")
VALUE = "trainer.max_grad_value=0.01"


def small(*overrides, fused=True, **parts):
    return assemble(*SMALL, f"optimizer.fused={str(fused).lower()}", *overrides, **parts)


def bare_steps(training, first, last):
    """The steps of a training as anyone would write them by hand; each reads its loss and norm."""
    model, data, precision = training.built.model, training.built.data, training.built.precision
    dtype = torch.float16 if precision.config.autocast else None
    steps = [
        amp_step(model, training.optimizer, precision.scaler, [data.train_batch(index)], dtype=dtype, max_norm=1.0)
        for index in range(first, last)
    ]
    return [loss.item() for (loss,), _ in steps]


def num_waits(work):
    """How often a number is read off a tensor, by torch's own kernels too: on a GPU each time the host waits."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        work()
    return sum(event.count for event in profiled.key_averages() if event.key == "aten::_local_scalar_dense")


def train_untraced_part(training, work=lambda train: train()):
    """Take the first four steps, one of which is traced, and hand the rest to `work`."""
    trainer = training.trainer
    with trainer.instruments:
        trainer.train(StopAfter(FIRST))
        assert trainer.step == FIRST
        return work(lambda: trainer.train(StopAfter(NUM_STEPS + 1)))


@pytest.mark.parametrize(
    ("fused", "settings"),
    [
        *((fused, (f"precision={mode}",)) for fused in (False, True) for mode in ("fp32", "amp_fp16")),
        *((fused, ("optimizer=sgd", *RARELY)) for fused in (False, True)),
        *((True, (setting, *RARELY)) for setting in ("scheduler=cosine", VALUE)),
    ],
)
def test_the_loop_waits_and_computes_as_a_bare_loop_does(fused, settings):
    assert num_waits(lambda: torch.ones(3).sum().item()) == 1
    bare, training = small(*settings, fused=fused), small(*settings, fused=fused)
    losses = bare_steps(bare, 0, FIRST)  # with a cosine, torch's CPU kernel reads the learning rate
    expected = num_waits(lambda: losses.extend(bare_steps(bare, FIRST, NUM_STEPS))) - 2 * (NUM_STEPS - FIRST)
    assert train_untraced_part(training, num_waits) == expected
    if "trainer.log_every=1000" in settings:
        assert len(training.rows) == 2  # the first part ends with a row as well
    else:
        assert [*training.column("train/loss").values()] == losses
    if not {"scheduler=cosine", VALUE} & {*settings}:
        assert all(map(torch.equal, bare.parameters(), training.parameters()))


def test_how_often_is_logged_evaluated_and_saved_changes_nothing(tmp_path):
    overrides = (*GPT, "precision=amp_fp16", "trainer.steps=12", "trainer.max_grad_norm=null")
    quiet = assemble(*overrides, "trainer.log_every=100")
    quiet.trainer.precision.unscale_ = lambda optimizer: pytest.fail("neither clipped nor logged")
    quiet.train()
    busy = trained(*overrides, "trainer.eval_every=2", "trainer.checkpoint_every=3", directory=tmp_path)
    assert len(quiet.rows) < len(busy.rows)
    assert all(map(torch.equal, quiet.parameters(), busy.parameters()))
    assert quiet.rows[-1]["val/loss"] == busy.rows[-1]["val/loss"]


@pytest.mark.parametrize("num_batches", [1, 3])
def test_a_loss_keeps_no_outputs_alive(num_batches):
    """torch keeps the value of `mse_loss` in a storage as large as the outputs."""
    training, alive = small(f"trainer.grad_accum_steps={num_batches}"), []
    training.use_loss(lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
    with trace_step(training.trainer.model, training.optimizer) as trace:
        training.optimizer.register_step_pre_hook(
            lambda *_: alive.extend(life for life in trace.ledger.allocations if life.died is None)
        )
        step = training.trainer.train_step()
    assert step.loss.untyped_storage().nbytes() == 4
    assert sum(life.num_bytes for life in alive if life.category == "activations") == 4
    assert trace.result.kept["activations"] == 4


def overhead_ms(training):
    train_untraced_part(training)
    summary = training.instruments.summary()
    return summary["instrumentation/overhead_pct"] / 100 * 1e3 * BATCH / summary["perf/samples_per_sec"]


def sleep_ms(milliseconds):
    time.sleep(milliseconds / 1e3)


def test_the_overhead_is_the_time_in_our_own_calls(monkeypatch):
    training = small("trainer.eval_every=1", "trainer.checkpoint_every=1", _save=lambda trainer: sleep_ms(20))
    evaluate = training.built.task.evaluate
    training.built.task.evaluate = lambda model, batch: sleep_ms(20) or evaluate(model, batch)
    assert overhead_ms(training) < 15, "evaluations and checkpoints are none"
    monkeypatch.setattr("ampsweep.recorder.recorder.FLUSH_EVERY_S", 0)
    training = small()
    training.trainer.recorder._log_row = lambda row, step: sleep_ms(20)
    assert 20 * 7 / 8 < overhead_ms(training) < 60, "the time after the last step belongs to no step"


def test_waiting_for_data_is_a_figure_of_its_own():
    training = small("trainer.grad_accum_steps=2")
    read = training.trainer.data.train_batch
    training.trainer.data.train_batch = lambda index: sleep_ms(10) or read(index)
    train_untraced_part(training)
    row = training.rows[-1]
    assert 20 <= row["perf/data_wait_ms"] <= row["perf/step_ms"]
    assert training.instruments.summary()["perf/data_wait_ms"] >= 20  # a mean, lifted by long sleeps


@contextmanager
def waiting(mode):
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@needs_cuda
@pytest.mark.parametrize("more", [(), ("scheduler=cosine", "trainer.max_grad_value=0.1")])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(
    ("fused", "mode", "num_waits"),
    [(True, "fp32", 0), (True, "amp_fp16", 0), (False, "amp_bf16", 0), (False, "amp_fp16", NUM_STEPS - FIRST)],
)
def test_on_cuda_only_a_scaler_waits_between_two_flushes(optimizer, fused, mode, num_waits, more):
    settings = (f"optimizer={optimizer}", f"precision={mode}", "trainer.log_every=4", *more)
    training = small(*settings, fused=fused, device=torch.device("cuda", 0))
    trainer, may_wait = training.trainer, waiting("default")
    record, trainer.evaluate = trainer._record, may_wait(trainer.evaluate)
    # It may wait to evaluate, and to know at the end whether steps were skipped.
    trainer._record = lambda *step: (record if trainer.step < trainer.num_steps else may_wait(record))(*step)

    def watch(train):
        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as waits, waiting("warn"):
            warnings.simplefilter("always")
            train()
        return [wait for wait in waits if "called a synchronizing CUDA operation" in str(wait.message)]

    waits = train_untraced_part(training, watch)
    assert [Path(wait.filename).name for wait in waits] == ["grad_scaler.py"] * num_waits
    assert [row["step"] for row in training.rows] == [4, 8, 12]


@needs_cuda
def test_on_cuda_several_rows_come_over_in_one_copy_and_all_scales_in_another():
    training = small(*RARELY, "scheduler=cosine", device=torch.device("cuda", 0))
    trainer = training.trainer

    def read(train):
        for _ in range(3):
            trainer.step += 1
            with trainer.instruments.step():
                step = trainer.train_step(norm_wanted=True)
            trainer.recorder.log(trainer._values(step), trainer.step)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiled:
            trainer.recorder.flush()
        return sum(event.count for event in profiled.key_averages() if event.key.startswith("Memcpy DtoH"))

    assert train_untraced_part(training, read) == 2
