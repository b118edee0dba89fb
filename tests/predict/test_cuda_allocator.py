"""The allocator on paper follows the rules of torch's own."""

import pytest

from ampsweep.predict.cuda_allocator import CudaAllocatorModel, DeviceFullError
from ampsweep.text import MIB


@pytest.fixture
def allocator():
    return CudaAllocatorModel()


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # what remains, up to 1 MiB, is not split off
        (33 * MIB, 34 * MIB, 34 * MIB),
        (33 * MIB - 512, 33 * MIB - 512, 34 * MIB),
    ],
)
def test_sizes_are_rounded_and_taken_from_segments(allocator, asked, allocated, reserved):
    allocator.allocate(0, asked)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_small_allocations_share_segments_and_merge_when_freed(allocator):
    for number in range(4):
        allocator.allocate(number, MIB // 2)
    assert allocator.reserved == 2 * MIB
    allocator.free(1)
    allocator.free(2)
    allocator.allocate(4, MIB)
    assert allocator.reserved == 2 * MIB
    allocator.allocate(5, 512)
    assert allocator.reserved == 4 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken(allocator):
    for number, size in enumerate((40 * MIB, 20 * MIB, 30 * MIB)):
        allocator.allocate(number, size)
    for number in range(3):
        allocator.free(number)
    allocator.allocate(3, 25 * MIB)
    allocator.allocate(4, 40 * MIB)
    assert allocator.reserved == 90 * MIB
    assert allocator.allocated == 65 * MIB


def test_freed_memory_stays_reserved_up_to_the_limit():
    allocator = CudaAllocatorModel(limit=100 * MIB)
    allocator.allocate(0, 60 * MIB)
    allocator.free(0)
    assert (allocator.allocated, allocator.reserved) == (0, 60 * MIB)
    allocator.allocate(1, 80 * MIB)
    assert allocator.reserved == 80 * MIB
    assert allocator.max_reserved == 80 * MIB
    with pytest.raises(DeviceFullError):
        allocator.allocate(2, 30 * MIB)


def test_a_segment_in_part_of_use_is_not_given_back():
    allocator = CudaAllocatorModel(limit=50 * MIB)
    allocator.allocate(0, 40 * MIB)
    allocator.free(0)
    allocator.allocate(1, 2 * MIB)
    with pytest.raises(DeviceFullError):
        allocator.allocate(2, 39 * MIB)
