"""Figures that others have published, predicted under their conditions."""

from programs import trace_program
from recipe_loop import recipe

from ampsweep.predict.cuda_allocator import CudaAllocatorModel
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.step_memory import events, timeline
from ampsweep.predict.target_device import TargetDevice

T4, A100 = (7, 5), (8, 0)


def max_memory_allocated(program, target):
    """After each moment that the program marks: the allocator's peak since the one before."""
    device, moments = FakeDevice(target), []
    with device(), trace_program(device) as trace:
        program(lambda: moments.append(trace.ledger.moment))
    lives = timeline(trace.ledger, optimizer_step=0)
    allocator, peaks = CudaAllocatorModel(), []
    for number, num_bytes in enumerate(target.workspaces):
        allocator.allocate(-1 - number, num_bytes)
    for moment, number, is_birth in events(lives):
        while len(peaks) < len(moments) and moment > moments[len(peaks)]:
            peaks.append(allocator.max_allocated)
            allocator.max_allocated = allocator.allocated
        if is_birth:
            allocator.allocate(number, int(lives.sizes[number]))
        else:
            allocator.free(number)
    for _ in moments[len(peaks) :]:
        peaks.append(allocator.max_allocated)
        allocator.max_allocated = allocator.allocated
    return peaks


def test_both_phases_of_the_amp_recipe_to_the_byte():
    """A Tesla T4 with torch 1.11 printed 1350681600 and 1577232384 bytes; the AMP phase holds the first one's model."""
    _, default_precision, _, mixed_precision = max_memory_allocated(
        lambda mark: recipe(mark, num_steps=3), TargetDevice("cuda", T4, torch_version=(1, 11))
    )
    assert default_precision == 1_350_681_600
    assert mixed_precision == 1_577_232_384


def test_newer_versions_add_workspaces_and_a_full_size_loss():
    old, new = (
        max_memory_allocated(lambda mark: recipe(mark, num_steps=3), TargetDevice("cuda", A100, version))[1]
        for version in ((1, 11), (2, 13))
    )
    workspaces = 2 * (2 * 4096 + 16 * 8) * 1024
    assert new - old == workspaces + 512 * 4096 * 4 - 512
