"""The same training step twice: taken on the CPU, and predicted for it."""

import copy
import functools

import torch

from ampsweep.config.compose import compose_one
from ampsweep.observe.step import trace_step
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
RESNET = (
    *("model=resnet18", "data.image_size=8", "data.num_classes=10"),
    *("data.batch_size=4", "data.num_batches=4"),
)


def measured(*overrides, resumed=None):
    """What the second step of a training did; `resumed`: of one that continues another, saved in this folder."""
    config = composed(*overrides)
    built = build(config, CPU, build_data(config, CPU))
    trainer = assemble_trainer(config, built, CPU)
    trainer.model.train()
    if resumed is not None:
        before = assemble_trainer(config, build(config, CPU, build_data(config, CPU)), CPU)
        before.train_step()
        before.step += 1
        resume(trainer, find_checkpoint(take_checkpoint(before, resumed, "hash", "model", "arm")))
    with built.precision.flags():
        trainer.train_step()
        with trace_step(trainer.model, *trainer.optimizers.values()) as trace:
            trainer.train_step()
    return trace.result


def measured_memory(*overrides):
    """The same with what kernels took for themselves, as a run's record has it."""
    config = composed(*overrides)
    built = build(config, CPU, build_data(config, CPU))
    trainer = assemble_trainer(config, built, CPU)
    trainer.model.train()
    with built.precision.flags():
        for _ in range(2):
            with trainer.instruments.step():
                trainer.train_step()
    return trainer.instruments.memory()


def predicted(*overrides, target=None, batch_size=None):
    """The timeline of the same step, predicted."""
    config = composed(*overrides)
    return FakeTraining(config, target or TargetDevice("cpu")).trace(batch_size or config.data["batch_size"])


def composed(*overrides):
    return copy.deepcopy(_composed(*overrides))


@functools.cache
def _composed(*overrides):
    return compose_one([*ON_CPU, *overrides])  # a quarter of a second
