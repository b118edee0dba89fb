"""What CUDA keeps beside tensors: the allocator's rules, workspaces, and figures that others have published.

The PyTorch AMP recipe as of torch 1.11 (M. Carilli, docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html): 50
batches resident on the device, three linear layers of 4096, SGD, gradients set to zero instead of None. `output` and
`loss` outlive a step, and the first loss of the second part is computed while the first model's last graph is alive.
"""

import pytest
import torch
from steps import composed, trace_program
from torch import nn

from ampsweep.config.errors import UserError
from ampsweep.config.schema import PredictConfig
from ampsweep.predict.cuda_allocator import CudaAllocatorModel, DeviceFullError
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.step_memory import events, timeline
from ampsweep.predict.target_device import TargetDevice, resolve_target
from ampsweep.predict.workload_prediction import predict_arm
from ampsweep.text import MIB

SMALL, LARGE = (2 * 4096 + 8 * 16) * 1024, 32 * MIB
T4, A100, H100, B200, THOR, RTX_5090 = (7, 5), (8, 0), (9, 0), (10, 0), (11, 0), (12, 0)


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        *((1, 512, 2 * MIB), (513, 1024, 2 * MIB), (MIB, MIB, 2 * MIB), (MIB + 1, MIB + 512, 20 * MIB)),
        *((10 * MIB - 512, 10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB, 10 * MIB)),
        (11 * MIB, 12 * MIB, 12 * MIB),  # what remains, up to 1 MiB, is not split off
        *((33 * MIB, 34 * MIB, 34 * MIB), (33 * MIB - 512, 33 * MIB - 512, 34 * MIB)),
    ],
)
def test_sizes_are_rounded_and_taken_from_segments(asked, allocated, reserved):
    allocator = allocated_by([asked])
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def allocated_by(sizes, freed=(), limit=None):
    """An allocator after requests of these sizes, of which some are freed again; a request has its place as number."""
    allocator = CudaAllocatorModel(limit=limit)
    for number, size in enumerate(sizes):
        allocator.allocate(number, size)
    for number in freed:
        allocator.free(number)
    return allocator


def test_blocks_share_segments_and_the_smallest_is_taken():
    allocator = allocated_by([MIB // 2] * 4, freed=(1, 2))
    allocator.allocate(4, MIB)
    assert allocator.reserved == 2 * MIB
    allocator.allocate(5, 512)
    assert allocator.reserved == 4 * MIB

    allocator = allocated_by([40 * MIB, 20 * MIB, 30 * MIB], freed=(0, 1, 2))
    allocator.allocate(3, 25 * MIB)
    allocator.allocate(4, 40 * MIB)
    assert (allocator.reserved, allocator.allocated) == (90 * MIB, 65 * MIB)


def test_free_segments_are_returned_at_the_limit():
    allocator = allocated_by([60 * MIB], freed=(0,), limit=100 * MIB)
    assert (allocator.allocated, allocator.reserved) == (0, 60 * MIB)
    allocator.allocate(1, 80 * MIB)
    assert allocator.reserved == allocator.max_reserved == 80 * MIB
    with pytest.raises(DeviceFullError):
        allocator.allocate(2, 30 * MIB)
    allocator.free(1)
    for number in (3, 4):
        allocator.allocate(number, 2 * MIB)
    for freed in (3, 4):
        with pytest.raises(DeviceFullError):
            allocator.allocate(5, 81 * MIB)
        assert allocator.reserved == 80 * MIB
        allocator.free(freed)
    allocator.allocate(5, 81 * MIB)


BLACKWELL = {H100, B200, RTX_5090}


@pytest.mark.parametrize(
    ("minor", "large", "of_lt"),
    [(11, {H100}, (MIB,)), (12, BLACKWELL, ()), (13, BLACKWELL, ()), (14, BLACKWELL | {THOR}, ())],
)
def test_workspaces_are_those_of_the_version(minor, large, of_lt, monkeypatch):
    version = (2, minor)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for capability in (T4, A100, H100, B200, THOR, RTX_5090):
        of_handles = (LARGE if capability in large else SMALL,) * 2
        assert TargetDevice("cuda", capability, version).workspaces == (*of_handles, *of_lt)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    assert TargetDevice("cuda", H100, version).workspaces == (SMALL, SMALL, *of_lt)
    assert TargetDevice("cuda", A100, (1, 11)).workspaces == TargetDevice("cpu").workspaces == ()


@pytest.mark.parametrize(
    ("version", "bias", "scratch"),
    [((2, 14), True, []), ((2, 15), True, [MIB, SMALL]), ((2, 15), False, [SMALL, SMALL])],
)
def test_since_2_15_a_product_has_its_workspace_while_it_runs(version, bias, scratch, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    device = FakeDevice(TargetDevice("cuda", A100, version))
    assert (device.target.workspaces == ()) is (version == (2, 15))
    layer = device.adopt(nn.Linear(8, 8, bias=bias, device="meta"))
    with device(), trace_program(device) as trace:
        layer(torch.ones(4, 8)).sum().backward()
    lives = timeline(trace.ledger, optimizer_step=0)
    assert sorted(lives.sizes[lives.categories < 0].tolist()) == scratch  # forward, and the weight's gradient


def test_the_backward_pass_takes_its_workspace_from_a_block_of_the_logits():
    """Bytes that an H200 with torch 2.11 reserved: the next step takes a block more for its logits."""
    sizes = ("model.num_layers=4", "data.seq_len=512", "data.batch_size=8", "data.num_batches=4")
    target = TargetDevice("cuda", H100, (2, 11))
    memory = predict_arm(composed("model=gpt_small", *sizes, "precision=pure_bf16"), [target])[target].memory
    assert memory.reserved_bytes == pytest.approx(4_328_521_728, rel=0.01)


def test_the_capability_is_that_of_the_device_that_is_meant(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    capabilities = {None: A100, "cuda:1": H100, "cuda": A100}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capabilities[device])
    for settings, device, capability in (
        ({"target": "cuda"}, "cuda:1", H100),
        ({}, "cuda:1", H100),
        ({"target": "cuda"}, "cpu", A100),
        ({"target": "cuda", "capability": "7.5"}, "cuda:1", T4),
    ):
        assert resolve_target(PredictConfig(**settings), device).capability == capability
    with pytest.raises(UserError, match="memory is predicted for cpu, cuda, not for mps"):
        resolve_target(PredictConfig(), "mps")
    with pytest.raises(UserError, match=r"predict.capability=8.0: has an effect only with predict.target=cuda"):
        resolve_target(PredictConfig(capability="8.0"), "cpu")
    with pytest.raises(UserError, match="must be two numbers with a dot between"):
        resolve_target(PredictConfig(target="cuda", capability="ampere"), "cpu")


BATCH_SIZE, WIDTH, NUM_LAYERS, NUM_BATCHES = 512, 4096, 3, 50


def recipe(mark):
    """Take three steps of both parts on the CPU; call `mark` before and after each."""
    data, targets = ([torch.randn(BATCH_SIZE, WIDTH) for _ in range(NUM_BATCHES)] for _ in range(2))
    for is_mixed in (False, True):
        layers = [layer for _ in range(NUM_LAYERS - 1) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        net = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))
        opt, scaler = torch.optim.SGD(net.parameters(), lr=0.001), torch.amp.GradScaler("cpu", enabled=is_mixed)
        del layers
        mark()
        for input, target in [*zip(data, targets, strict=True)][:3]:
            with torch.autocast("cpu", torch.float16, enabled=is_mixed):
                output = net(input)
                loss = nn.functional.mse_loss(output, target)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=False)
        mark()


def peaks(target):
    """The allocator's peak before each moment that the recipe marks, since the one before."""
    device, moments = FakeDevice(target), []
    with device(), trace_program(device) as trace:
        recipe(lambda: moments.append(trace.ledger.moment))
    lives = timeline(trace.ledger, optimizer_step=0)
    allocator, peaks = CudaAllocatorModel(), []
    for number, num_bytes in enumerate(target.workspaces):
        allocator.allocate(-1 - number, num_bytes)
    for moment, number, is_birth in (*events(lives), (lives.end, None, None)):
        while len(peaks) < len(moments) and moment > moments[len(peaks)]:
            peaks.append(allocator.max_allocated)
            allocator.max_allocated = allocator.allocated
        if is_birth:
            allocator.allocate(number, int(lives.sizes[number]))
        elif number is not None:
            allocator.free(number)
    return peaks


def test_both_phases_of_the_amp_recipe_to_the_byte():
    """A Tesla T4 with torch 1.11 printed 1350681600 and 1577232384 bytes; the AMP phase holds the first one's model."""
    _, default_precision, _, mixed_precision = peaks(TargetDevice("cuda", T4, torch_version=(1, 11)))
    assert (default_precision, mixed_precision) == (1_350_681_600, 1_577_232_384)


def test_newer_versions_add_workspaces_and_a_full_size_loss():
    old, new = (peaks(TargetDevice("cuda", A100, version))[1] for version in ((1, 11), (2, 13)))
    assert new - old == 2 * (2 * 4096 + 16 * 8) * 1024 + 512 * 4096 * 4 - 512
