"""A prediction for a rank is the step that real ranks take, gloo's on this machine, to the byte."""

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from steps import CPU, GPT, MLP, assembled, composed
from torch import multiprocessing

from ampsweep.observe.step import trace_step
from ampsweep.parallel.rank_environment import RankPlace
from ampsweep.parallel.strategy import make_parallel
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice

ACCUMULATED, CHECKPOINTED = ("trainer.grad_accum_steps=3",), ("trainer.activation_checkpointing=true",)
REDUCED = ("parallel.reduce_dtype=float32",)
RANKS = 3
"""No shard is a whole number of most parameters' rows."""
ALWAYS = [
    ("ddp", GPT, "amp_fp16", ACCUMULATED),
    ("fsdp2", MLP, "fp32", CHECKPOINTED),
    ("fsdp2", GPT, "amp_bf16", ACCUMULATED),
]
NIGHTLY = [
    ("ddp", MLP, "fp32", ()),
    ("ddp", GPT, "amp_bf16", CHECKPOINTED),
    ("ddp", GPT, "pure_bf16", REDUCED),
    ("ddp", GPT, "fp32", ("parallel.reduce_dtype=bfloat16",)),
    ("fsdp2", GPT, "amp_fp16", CHECKPOINTED),
    ("fsdp2", GPT, "amp_bf16", ("parallel.mixed_precision=autocast",)),
    ("fsdp2", GPT, "pure_bf16", (*REDUCED, *ACCUMULATED)),
    ("fsdp2", GPT, "fp32", ("parallel.reshard_after_forward=false",)),
]


def overrides(strategy, workload, mode, settings):
    return (*workload, f"parallel={strategy}", f"parallel.num_processes={RANKS}", f"precision={mode}", *settings)


def measured_on_ranks(cases, folder):
    # A fork has all imported, but no fork of a CUDA build can run backward once its parent has.
    method = "spawn" if torch.backends.cuda.is_built() or threading.active_count() > 1 else "fork"
    multiprocessing.start_processes(_rank, (cases, folder), RANKS, start_method=method)
    return zip(*(torch.load(folder / str(rank), weights_only=False) for rank in range(RANKS)), strict=True)


def _rank(rank, cases, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    place = RankPlace(rank, RANKS, rank, RANKS, "localhost", 0, has_store=False)
    torch.save([_step(overrides(*case), place) for case in cases], folder / str(rank))
    dist.destroy_process_group()


def _step(overrides, place):
    parallel = make_parallel(composed(*overrides).parallel, SimpleNamespace(place=place), CPU)
    _, trainer, built = assembled(*overrides, parallel=parallel)
    with built.precision.flags():
        trainer.train_step()
        trainer.train_step()  # in which DDP sends the ranks its new buckets: gloo's thread holds that for a moment
        with trace_step(trainer.model, *trainer.optimizers.values()) as trace:
            trainer.train_step()
    return trace.result


def predicted(case, world_size, target="cpu", rank=0):
    config = composed(*overrides(*case))
    return FakeTraining(config, TargetDevice(target), world_size, rank).trace(config.data["batch_size"])


@pytest.mark.parametrize("cases", [ALWAYS, pytest.param(NIGHTLY, marks=pytest.mark.nightly)], ids=["always", "nightly"])
def test_every_rank_to_the_byte(cases, tmp_path):
    for case, ranks in zip(cases, measured_on_ranks(cases, tmp_path), strict=True):
        for rank, truth in enumerate(ranks):
            step = predicted(case, RANKS, rank=rank)
            assert step.peak().categories == truth.peak, (case, rank)
            assert step.at(step.end_of_forward) == truth.end_of_forward, (case, rank)
            assert truth.end_of_forward["communication"] > 0 or case[0] == "fsdp2"


def test_the_first_rank_is_the_fullest_and_replicas_take_the_same_on_any_number():
    first, middle, last = (predicted(ALWAYS[2], 8, "cuda", rank).peak().num_bytes for rank in (0, 4, 7))
    assert first >= middle >= last < first
    two, many = (predicted(ALWAYS[0], world_size, "cuda") for world_size in (2, 64))
    assert (two.sizes == many.sizes).all()
