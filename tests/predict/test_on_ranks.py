"""A prediction for a rank is the step that real ranks take, to the byte, in every category."""

import pytest
from on_ranks import measured_on_ranks
from steps import GPT, MLP, composed

from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice

ACCUMULATED = ("trainer.grad_accum_steps=3",)
CHECKPOINTED = ("trainer.activation_checkpointing=true",)
CASES = [
    ("ddp", MLP, "fp32", ()),
    ("ddp", MLP, "amp_fp16", ACCUMULATED),
    ("ddp", GPT, "amp_bf16", CHECKPOINTED),
    ("ddp", GPT, "pure_bf16", ("parallel.reduce_dtype=float32",)),
    ("ddp", GPT, "fp32", ("parallel.reduce_dtype=bfloat16",)),
    ("fsdp2", MLP, "fp32", ()),
    ("fsdp2", GPT, "amp_bf16", ACCUMULATED),
    ("fsdp2", GPT, "amp_fp16", CHECKPOINTED),
    ("fsdp2", GPT, "amp_bf16", ("parallel.mixed_precision=autocast",)),
    ("fsdp2", GPT, "pure_bf16", ("parallel.reduce_dtype=float32", *ACCUMULATED)),
    ("fsdp2", GPT, "fp32", ("parallel.reshard_after_forward=false",)),
]
RANKS = 3
"""Of which no shard is a whole number of most parameters' rows."""


def overrides(strategy, workload, mode, settings):
    return (*workload, f"parallel={strategy}", f"parallel.num_processes={RANKS}", f"precision={mode}", *settings)


def named(case):
    strategy, workload, mode, settings = case
    return "-".join([strategy, workload[0].partition("=")[2], mode, *(one.partition("=")[0] for one in settings)])


@pytest.fixture(scope="module")
def measured():
    """The traced step of each case on each rank."""
    found = measured_on_ranks([overrides(*case) for case in CASES], RANKS)
    return dict(zip(map(named, CASES), found, strict=True))


def traced(case, world_size, target="cpu", rank=0):
    config = composed(*overrides(*case))
    return FakeTraining(config, TargetDevice(target), world_size, rank).trace(config.data["batch_size"])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_rank_to_the_byte(case, measured):
    for rank, truth in enumerate(measured[named(case)]):
        step = traced(case, RANKS, rank=rank)
        assert step.peak().categories == truth.peak
        assert step.at(step.end_of_forward) == truth.end_of_forward
        assert truth.end_of_forward["communication"] > 0 or case[0] == "fsdp2"


def test_the_first_rank_is_the_fullest():
    peaks = [traced(CASES[6], 8, "cuda", rank).peak().num_bytes for rank in (0, 4, 7)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > peaks[-1]


def test_replicas_take_the_same_on_any_number_of_ranks():
    two, many = (traced(CASES[0], world_size, "cuda") for world_size in (2, 64))
    assert (two.sizes == many.sizes).all()
