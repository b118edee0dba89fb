"""The same training step twice: taken on the CPU, and predicted for it."""

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ampsweep.config.compose import compose_one
from ampsweep.observe.ledger import Ledger
from ampsweep.observe.step import OperatorTracer, Trace, _traced, trace_step
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.kernel_sizes import scratch_of
from ampsweep.predict.target_device import TargetDevice
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume, take_checkpoint

CPU = torch.device("cpu")
ON_CPU = ("device=cpu", "tracking=disabled")
MLP = ("model=mlp_small", "model.hidden_size=64", "data=digits", "data.batch_size=32")
REGRESSION = (
    *("model=mlp_recipe", "model.hidden_size=128"),
    *("data.in_features=128", "data.out_features=64", "data.batch_size=16", "data.num_batches=4"),
)
GPT = (
    *("model=gpt_tiny", "model.dropout=0.1", "data=synthetic_tokens"),
    *("data.vocab_size=300", "data.seq_len=32", "data.batch_size=4", "data.num_batches=4"),
)
RESNET = (*("model=resnet18", "data.image_size=8", "data.num_classes=10"), *("data.batch_size=4", "data.num_batches=4"))


def measured(*overrides, resumed=None):
    """The traced second step of a training; `resumed`: of one that continues another, saved in this folder."""
    _, trainer, built = assembled(*overrides)
    if resumed is not None:
        before = assembled(*overrides)[1]
        before.train_step()
        before.step += 1
        resume(trainer, find_checkpoint(take_checkpoint(before, resumed, "hash", "model", "arm")))
    with built.precision.flags():
        trainer.train_step()
        with trace_step(trainer.model, *trainer.optimizers.values()) as trace:
            trainer.train_step()
    return trace.result


def assembled(*overrides):
    config = composed(*overrides)
    built = build(config, CPU, build_data(config, CPU))
    trainer = assemble_trainer(config, built, CPU)
    trainer.model.train()
    return config, trainer, built


def predicted(*overrides, target=None, batch_size=None):
    """The timeline of the same step, predicted."""
    config = composed(*overrides)
    return FakeTraining(config, target or TargetDevice("cpu")).trace(batch_size or config.data["batch_size"])


def assert_to_the_byte(*overrides):
    """Assert that the prediction for the CPU is the step that the CPU takes; return that."""
    truth, timeline = measured(*overrides), predicted(*overrides)
    peak = timeline.peak()
    assert peak.categories == truth.peak
    assert peak.num_bytes == truth.peak_bytes
    assert timeline.at(timeline.end_of_forward) == truth.end_of_forward
    return truth


def composed(*overrides):
    return copy.deepcopy(_composed(*overrides))


@functools.cache
def _composed(*overrides):
    return compose_one([*ON_CPU, *overrides])  # a quarter of a second


@contextmanager
def trace_program(device: FakeDevice) -> Iterator[Trace]:
    """Trace a program whose parameters and optimizers are not known beforehand: with sizes, but without categories."""
    is_host = None if device.target.kind == "cpu" else False
    ledger = Ledger(CPU, fake=device.kernels, is_host=is_host)
    trace, mode = Trace(ledger), OperatorTracer(ledger, None if is_host is None else scratch_of(device.target))
    with mode:
        yield trace
    trace.result = _traced(ledger, mode)
    ledger.close()
