"""The same training step twice: taken on the CPU, and predicted for it."""

import copy
import functools

import torch
from torch import nn

from ampsweep.config.compose import compose_one
from ampsweep.observe.step import trace_step
from ampsweep.parallel.base import SINGLE
from ampsweep.predict.fake_training import FakeTraining
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
LLAMA = ("model=llama_tiny", *GPT[2:])
RESNET = (*("model=resnet18", "data.image_size=8", "data.num_classes=10"), *("data.batch_size=4", "data.num_batches=4"))
TEXT = ("data=text", "data.seq_len=16", "data.batch_size=4")


def own(target, data=("data=digits", "data.batch_size=6")):
    return ("model=custom", f"model._target_={target}", *data)


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


def assembled(*overrides, parallel=SINGLE, device=CPU):
    config = composed(*overrides)
    built = build(config, device, build_data(config, device), parallel)
    trainer = assemble_trainer(config, built, device)
    trainer.model.train()
    return config, trainer, built


def predicted(*overrides, target=None, batch_size=None):
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


def trace_program(device):
    """Trace a program whose parameters and optimizers are not known beforehand: with sizes, but without categories."""
    return device.trace_step(device.adopt(nn.ParameterList([torch.empty(0, device="meta")])))
