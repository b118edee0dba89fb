"""Memory that ranks take for each other: buckets of gradients and gathered parameters, each byte in one category.

Only one rank of each group is there: torch's fake process group.
"""

import gc
from contextlib import contextmanager, nullcontext

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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(3))
        self.first, self.blocks, self.last = nn.Linear(33, WIDTH), nn.ModuleList(blocks), nn.Linear(WIDTH, 7)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


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
    def __init__(self, model, *, micro_batches=1, max_norm=None, autocast=False):
        self.model, self.max_norm = model, max_norm
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        self.batches = [torch.randn(BATCH, 33) for _ in range(micro_batches)]

    def step(self):
        for batch in self.batches:
            is_last = batch is self.batches[-1]
            if isinstance(self.model, FSDPModule):
                self.model.set_requires_gradient_sync(is_last)
            waits = isinstance(self.model, DistributedDataParallel) and not is_last
            with self.model.no_sync() if waits else nullcontext():
                with self.autocast:
                    loss = self.model(batch).float().square().mean()
                loss.backward()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def traced(self):
        for _ in range(2):  # DDP forms its buckets anew in the second step
            self.step()
        gc.collect()
        with measure_host_peak() as truth, trace_step(self.model, self.optimizer) as trace:
            self.step()
        return trace.result, trace.result.held_bytes + truth.peak_bytes


def ddp(reduce_dtype=torch.float32, **settings):
    model = DistributedDataParallel(Net(), gradient_as_bucket_view=True)
    model.register_comm_hook(reduce_dtype, reduced)
    return Training(model, **settings)


def fsdp2(world_size, param_dtype=None, **settings):
    model, mesh = Net(), init_device_mesh("cpu", (world_size,))
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return Training(model, **settings)


@pytest.mark.parametrize("settings", [{}, {"micro_batches": 3}, {"max_norm": 1.0}], ids=str)
def test_every_byte_of_ddp(settings):
    with one_of(2):
        traced, truth = ddp(**settings).traced()
    assert traced.peak_bytes == truth, "torch's profiler counts every allocation"
    assert traced.peak["communication"] == traced.end_of_forward["communication"] == BYTES
    assert traced.peak["parameters"] == BYTES
    accumulates = "micro_batches" in settings
    assert (traced.peak["gradients"] == BYTES) is accumulates, "they have a memory of their own until they are reduced"
    assert traced.peak["other"] == settings.get("micro_batches", 1) * 4 * BATCH * 33


@pytest.mark.parametrize(
    ("world_size", "rank", "settings"),
    [(1, 0, {}), (2, 0, {"micro_batches": 3}), (3, 0, {"max_norm": 1.0}), (3, 2, {"micro_batches": 3}), (8, 7, {})],
)
def test_every_byte_of_fsdp2(world_size, rank, settings):
    with one_of(world_size, rank):
        training = fsdp2(world_size, **settings)
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
        traced, _ = fsdp2(2).traced()
        waiting, _ = fsdp2(2, torch.bfloat16, micro_batches=2).traced()
        whole, _ = ddp(autocast=True).traced()
        gathered, _ = fsdp2(2, autocast=True).traced()
    assert traced.end_of_forward["communication"] < OF_BLOCK, "after forward, those of the root alone are there"
    assert 2 * OF_BLOCK < traced.peak["communication"] < BYTES + 2 * OF_BLOCK
    assert waiting.end_of_forward["gradients"] == BYTES, "in the dtype of their reduction"
    assert gathered.end_of_forward["autocast_weights"] == whole.end_of_forward["autocast_weights"] > 0


def test_compressed_buckets_are_communication():
    with one_of(2):
        training = ddp(torch.bfloat16)
        training.step()
        with trace_step(training.model, training.optimizer) as trace:
            training.step()
        sizes = [a.num_bytes for a in trace.ledger.allocations if a.category == "communication" and a.died]
    assert BYTES // 2 in sizes
    assert trace.result.end_of_forward["communication"] == BYTES, "the buckets themselves"


def test_a_limit_counts_gathered_parameters_and_one_process_none():
    with one_of(2):
        training = fsdp2(2)
        training.step()
        with TensorBytes(torch.device("cpu")) as counted:
            training.step()
            traced, _ = training.traced()
    assert counted.peak_bytes == pytest.approx(traced.peak_bytes, rel=0.02)
    alone = Training(Net())
    alone.step()
    with trace_step(alone.model, alone.optimizer) as trace:
        assert not module._global_forward_hooks
        alone.step()
    assert trace.result.peak["communication"] == 0
