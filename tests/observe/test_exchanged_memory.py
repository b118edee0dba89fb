"""Memory that ranks take for each other: buckets of gradients and gathered parameters, each byte in one category.

Only one rank of each group is there: torch's fake process group.
"""

import gc
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules import module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from ampsweep.observe.host_memory import measure_host_peak
from ampsweep.observe.memory_limit import TensorBytes
from ampsweep.observe.step import trace_step

WIDTH, BATCH = 64, 16
OF_BLOCK, OF_ROOT = 4 * (8 * WIDTH * WIDTH + 5 * WIDTH), 4 * (33 * WIDTH + WIDTH + WIDTH * 7 + 7)
BYTES = 3 * OF_BLOCK + OF_ROOT


def model_of_blocks():
    blocks = (nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(3))
    return nn.Sequential(nn.Linear(33, WIDTH), *blocks, nn.Linear(WIDTH, 7))


@contextmanager
def one_of(world_size, rank=0):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def reduced(dtype, bucket):
    """Reduce a bucket in place as DDP does by itself, or in half precision as torch's compression hooks do."""
    compressed = bucket.buffer().to(dtype)
    dist.all_reduce(compressed, async_op=True)  # the fake group's own results are None
    if compressed is not bucket.buffer():
        bucket.buffer().copy_(compressed)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class Training:
    def __init__(self, model, *, micro_batches=1, autocast=False):
        self.model, self.has_autocast = model, autocast
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        self.batches = [torch.randn(BATCH, 33) for _ in range(micro_batches)]

    def step(self):
        for batch in self.batches:
            is_last = batch is self.batches[-1]
            if isinstance(self.model, FSDPModule):
                self.model.set_requires_gradient_sync(is_last)
            else:
                self.model.require_backward_grad_sync = is_last
            with torch.autocast("cpu", torch.bfloat16, enabled=self.has_autocast):
                loss = self.model(batch).float().square().mean()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def traced(self):
        for _ in range(2):  # DDP forms its buckets anew in the second step
            self.step()
        gc.collect()
        with measure_host_peak() as truth, trace_step(self.model, self.optimizer) as self.trace:
            self.step()
        return self.trace.result, self.trace.result.held_bytes + truth.peak_bytes


def ddp(reduce_dtype=torch.float32, **settings):
    model = DistributedDataParallel(model_of_blocks(), gradient_as_bucket_view=True)
    model.register_comm_hook(reduce_dtype, reduced)
    return Training(model, **settings)


def fsdp2(world_size, param_dtype=None, **settings):
    model, mesh = model_of_blocks(), init_device_mesh("cpu", (world_size,))
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32)
    for part in (*model[1:-1], model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return Training(model, **settings)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_every_byte_of_ddp(micro_batches):
    with one_of(2):
        traced, truth = ddp(micro_batches=micro_batches).traced()
    assert traced.peak_bytes == truth, "torch's profiler counts every allocation"
    assert traced.peak["communication"] == traced.end_of_forward["communication"] == BYTES
    assert traced.peak["parameters"] == BYTES
    accumulates = micro_batches > 1
    assert (traced.peak["gradients"] == BYTES) is accumulates, "they have a memory of their own until they are reduced"
    assert traced.peak["other"] == micro_batches * 4 * BATCH * 33


def test_compressed_buckets_are_communication():
    with one_of(2):
        training = ddp(torch.bfloat16)
        traced, _ = training.traced()
    ledger = training.trace.ledger
    assert BYTES // 2 in [a.num_bytes for a in ledger.allocations if a.category == "communication" and a.died]
    assert traced.end_of_forward["communication"] == BYTES, "the buckets themselves"


@pytest.mark.parametrize(("world_size", "rank", "micro_batches"), [(1, 0, 1), (2, 0, 3), (3, 0, 1), (3, 2, 3)])
def test_every_byte_of_fsdp2(world_size, rank, micro_batches):
    with one_of(world_size, rank):
        training = fsdp2(world_size, micro_batches=micro_batches)
        traced, truth = training.traced()
        shards = sum(p.to_local().untyped_storage().nbytes() for p in training.optimizer.param_groups[0]["params"])
    padded = 4 * 3 * (86 * WIDTH + 86 + 22 * 4 * WIDTH + 22) if world_size == 3 else 0
    assert 0 <= truth - traced.peak_bytes <= padded, "a block's padded gradients, the kernel's own"
    assert traced.peak["parameters"] == shards, "with the padding that makes them equally long"
    assert traced.peak["communication"] > 0
    assert traced.peak["optimizer_state"] <= 2 * shards + 4 * 16
    assert traced.kept["communication"] == 0, "what was gathered is free again"


def test_fsdp2_gathers_block_by_block_in_its_dtypes():
    with one_of(2):
        with TensorBytes(torch.device("cpu")) as counted:
            traced, _ = fsdp2(2).traced()
        waiting, _ = fsdp2(2, torch.bfloat16, micro_batches=2).traced()
        whole, _ = ddp(autocast=True).traced()
        gathered, _ = fsdp2(2, autocast=True).traced()
    assert traced.end_of_forward["communication"] < OF_BLOCK, "after forward, those of the root alone are there"
    assert 2 * OF_BLOCK < traced.peak["communication"] < BYTES + 2 * OF_BLOCK
    assert waiting.end_of_forward["gradients"] == BYTES, "in the dtype of their reduction"
    assert gathered.end_of_forward["autocast_weights"] == whole.end_of_forward["autocast_weights"] > 0
    assert counted.peak_bytes == pytest.approx(traced.peak_bytes, rel=0.02), "a limit counts gathered parameters"
    assert not module._global_forward_hooks
