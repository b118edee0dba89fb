"""A file of every allocation, on request."""

import inspect
import pickle

import pytest
import torch
from devices import needs_cuda

from ampsweep.monitors.memory import MemorySnapshot


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_a_device_that_cannot_be_recorded_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"^a memory snapshot needs a CUDA device; this one is {name}$"):
        MemorySnapshot(torch.device(name), tmp_path / "memory_snapshot.pickle")


def test_torch_still_has_the_functions_that_have_no_public_name():
    known = inspect.signature(torch.cuda.memory._record_memory_history).parameters.keys()
    assert {"enabled", "context", "stacks", "max_entries"} <= known
    assert next(iter(inspect.signature(torch.cuda.memory._dump_snapshot).parameters)) == "filename"


@needs_cuda
def test_on_cuda_the_file_has_the_allocations_and_who_made_them(tmp_path):
    path = tmp_path / "memory_snapshot.pickle"
    snapshot = MemorySnapshot(torch.device("cuda"), path)
    snapshot.save()
    assert not path.exists()
    snapshot.begin()
    held = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    snapshot.save()
    after = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    snapshot.save()
    content = pickle.loads(path.read_bytes())
    events = [event for trace in content["device_traces"] for event in trace if event["action"] == "alloc"]
    (event,) = [event for event in events if event["size"] == held.nbytes]
    assert any(frame["filename"] == __file__ for frame in event["frames"])
    assert not any(event["size"] == after.nbytes for event in events)
