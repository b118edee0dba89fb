"""The endings of a training: completed, cut short, stopped, diverged or out of memory, and what each leaves behind."""

import contextlib
import itertools
import math

import pytest
import torch
from assembled import MLP, StopAfter, assemble, trained
from devices import needs_cuda
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampsweep.observe.memory_limit import MemoryLimit, is_out_of_memory
from ampsweep.recorder.divergence import Ending
from ampsweep.recorder.out_of_memory import out_of_memory
from ampsweep.tasks.classification import Classification
from ampsweep.training.checkpoint import load_checkpoint

SGD = (*MLP, "optimizer=sgd", "trainer.max_grad_norm=null")
FP16 = (*MLP, "precision=amp_fp16", "precision.init_scale=1024", "trainer.max_grad_norm=null")


def test_rows_evaluations_and_checkpoints_come_as_often_as_asked():
    training = assemble(*MLP, "trainer.steps=5", "trainer.log_every=2")
    assert training.train() == Ending("completed")
    assert list(training.column("train/loss")) == [2, 4, 5]
    assert list(training.column("val/loss")) == list(training.column("val/accuracy")) == [5]
    assert training.saved == []
    training = trained(*MLP, "trainer.steps=7", "trainer.eval_every=3", "trainer.checkpoint_every=2")
    assert list(training.column("val/loss")) == [3, 6, 7]
    assert training.saved == [2, 4, 6]


def test_a_time_limit_cuts_a_training_short():
    training = assemble(*MLP, "trainer.steps=100", "trainer.log_every=50", "trainer.max_seconds=1e-6")
    assert training.train() == Ending("completed", None, "trainer.max_seconds=1e-06 reached after step 1 of 100")
    assert list(training.column("val/loss")) == [1]
    assert assemble(*MLP, "trainer.steps=1", "trainer.max_seconds=1e-6").train().cut_short is None, "in the last step"


def test_a_stopped_run_leaves_a_single_checkpoint_of_that_step(tmp_path):
    often = ("trainer.log_every=50", "trainer.checkpoint_every=4")
    training = assemble(*MLP, "trainer.steps=9", *often, directory=tmp_path)
    assert training.train(StopAfter(4)) == Ending("interrupted", "SIGTERM after step 4 of 9")
    checkpoint = load_checkpoint(tmp_path / "checkpoints/last.pt")
    assert (checkpoint.step, checkpoint.next_batch, checkpoint.applied_steps) == (4, 4, 4)
    assert (checkpoint.config_hash, checkpoint.model_name, checkpoint.arm) == ("hash", "my_model", "my_arm")
    assert list(training.column("train/loss")) == training.saved == [4]
    assert training.column("val/loss") == {}, "a stop waits for no evaluation"
    training = assemble(*MLP, "trainer.steps=4")
    assert training.train(StopAfter(4)).status == "completed", "a stop in the last step comes too late"
    assert training.saved == []


def test_a_loss_that_is_not_finite_diverges():
    training = assemble(*SGD, "optimizer.lr=1e30", "trainer.steps=20", "trainer.checkpoint_every=1")
    ending = training.train()
    step, loss = training.trainer.step, training.rows[-1]["train/loss"]
    assert not math.isfinite(loss)
    assert 1 < step < 20
    assert ending == Ending("diverged", f"the training loss is {loss} at step {step}")
    assert training.saved == list(range(1, step)), "a diverged state is not saved"


def test_a_validation_loss_or_scale_that_breaks_diverges():
    training = assemble(*MLP, "trainer.steps=4", "trainer.eval_every=2")
    training.built.task.evaluate = lambda model, batch: ({"loss": torch.tensor(math.nan)}, len(batch[0]))
    assert training.train() == Ending("diverged", "the validation loss is nan at step 2")
    settings = ("precision=amp_fp16", "precision.init_scale=1e-6", "optimizer.lr=1e30", "trainer.steps=30")
    training = assemble(*SGD, *settings)
    ending = training.train()
    assert ending.status == "diverged"
    assert ending.error.startswith("the scale collapsed to ")
    assert training.rows[-1]["amp/scale"] < 2.0**-24 <= training.rows[-2]["amp/scale"]


class Broken(Classification):
    """Its training loss is multiplied by `factor` in the batches from `first` to `last`."""

    def __init__(self, first, last=10**6, factor=math.nan):
        super().__init__()
        self.factors = (factor if first <= number <= last else 1.0 for number in itertools.count(1))

    def loss(self, model, batch):
        return super().loss(model, batch) * next(self.factors)


NAN_AT_12 = "the training loss is nan at step 12, and none of the last 7 steps was applied"


@pytest.mark.parametrize(
    ("broken", "steps", "log_every", "error"),
    [
        # From the fifth step on; a scale takes 34 skipped steps to collapse.
        ((5,), 60, 1, "the training loss is nan at step 24, and no step since step 4 was applied"),
        ((5,), 60, 10, "the training loss is nan at step 30, and no step since step 10 was applied"),
        # From the sixth step on.
        *(((6,), 12, log_every, NAN_AT_12) for log_every in (1, 5, 7, 40)),
        # The scale was right for the parameters, which have not changed since.
        ((5, 99, 1e36), 20, 8, "none of the last 16 of 20 steps was applied; the scale is 0.03125 by now"),
        ((5, 20), 24, 1, None),  # sixteen bad batches, and then good ones
        ((5, 20), 24, 10, None),
        ((11, 12), 12, 1, None),  # two at the very end
        ((12, 99, 1e36), 20, 10, None),  # nine steps skipped with a finite loss
    ],
)
def test_steps_that_stay_skipped_diverge(broken, steps, log_every, error, monkeypatch):
    monkeypatch.setattr("ampsweep.recorder.recorder.FLUSH_EVERY_S", 0)  # on a fast machine rows are read later
    training = assemble(*FP16, f"trainer.steps={steps}", f"trainer.log_every={log_every}", task=Broken(*broken))
    assert training.train() == Ending("completed" if error is None else "diverged", error)


def test_overflow_is_no_divergence_unless_it_stays():
    for init_scale in (2**24, 2**40):
        training = trained(*MLP, "precision=amp_fp16", f"precision.init_scale={init_scale}", "trainer.steps=40")
        assert training.rows[-1]["amp/skipped_steps"] > 4
    ending = assemble(*MLP, "precision=amp_fp16", "precision.init_scale=1099511627776", "trainer.steps=5").train()
    assert ending == Ending("diverged", "none of the 5 steps was applied; the scale is 6.87195e+10 by now")


NO_ENGINE = RuntimeError("GET was unable to find an engine to execute this computation")
"""What a convolution says both of a dtype that cuDNN cannot do and of workspaces for which there was no room."""


def test_a_lack_of_memory_is_recognized_and_recorded(monkeypatch):
    counts = [{}, {"num_ooms": 0}]  # of a device that was never used, and of the run's, which refused no request yet
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: counts[device])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 139 * 2**30)
    for error in (
        MemoryError(),
        torch.OutOfMemoryError(),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ):
        assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(NO_ENGINE)
    device = torch.device("cuda", 1)
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes")
    assert 0 < out_of_memory(error, device, MemoryLimit(device, None)).in_use_bytes < 100 * 2**30, "of the process"
    counts[1]["num_ooms"] = 3
    assert is_out_of_memory(NO_ENGINE)
    assert not is_out_of_memory(ValueError(str(NO_ENGINE)))
    oom = out_of_memory(NO_ENGINE, device, MemoryLimit(device, None))
    assert (oom.in_use_bytes, oom.requested_bytes) == (139 * 2**30, None)
    assert oom.error == f"RuntimeError: {NO_ENGINE}"


@needs_cuda
def test_on_cuda_a_convolution_without_room_lacks_memory():
    device, held = torch.device("cuda", 0), []
    convolution = nn.Conv2d(256, 256, 3, padding=1, device=device)
    output = convolution(torch.randn(16, 256, 64, 64, device=device, requires_grad=True))
    try:
        for mib in (1024, 64, 2):
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    held.append(torch.empty(mib * 2**20, dtype=torch.uint8, device=device))
        with pytest.raises(RuntimeError) as raised:
            output.backward(torch.ones_like(output))
        assert is_out_of_memory(raised.value)
    finally:
        held.clear()
        torch.cuda.empty_cache()


class ExhaustedError(Exception):
    """Stands for the error of the allocator."""


def exhausts(*_, **__):
    raise ExhaustedError


def recomputes(training):
    """Compute the model again in backward, by activation checkpointing, and only then exhaust the memory."""
    model, calls = training.built.model, []
    forward = model.forward
    again = lambda x: exhausts() if calls else calls.append(x) or forward(x)  # noqa: E731
    model.forward = lambda x: checkpoint(again, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("phase", "exhaust"),
    [
        ("data", lambda training: setattr(training.trainer.data, "train_batch", exhausts)),
        ("forward", lambda training: training.use_loss(exhausts)),
        ("backward", lambda training: next(training.built.model.parameters()).register_hook(exhausts)),
        ("backward", recomputes),
        ("optimizer", lambda training: setattr(training.trainer, "_clip", exhausts)),
        ("optimizer", lambda training: training.optimizer.register_step_pre_hook(exhausts)),
        ("eval", lambda training: setattr(training.built.task, "evaluate", exhausts)),
        ("other", lambda training: setattr(training.trainer.recorder, "_log_row", exhausts)),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "amp_fp16"])
def test_the_phase_that_ran_out_of_memory_is_known(phase, exhaust, precision):
    training = assemble(*MLP, f"precision={precision}", "precision.init_scale=16", "trainer.steps=2")
    exhaust(training)
    with pytest.raises(ExhaustedError):
        training.train()
    assert training.trainer.recorder.phase == phase
