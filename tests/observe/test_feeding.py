"""What feeds a training is none of its memory; what trains is, whoever allocated it."""

from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from ampsweep.observe.feeding import fed, fed_each, feeding, resident
from ampsweep.observe.host_memory import measure_host_peak
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.observe.step import trace_step
from ampsweep.text import GIB

CPU = torch.device("cpu")
WIDTH, BATCH, NUM_ITEMS = 16, 8, 10_000
BATCH_BYTES = 2 * 4 * BATCH * WIDTH


def own(data, index):
    return tuple(part[torch.arange(index * BATCH, (index + 1) * BATCH)] for part in data)


def views(data, index):
    return tuple(part[index * BATCH : (index + 1) * BATCH] for part in data)


def shuffled(data, index):
    """By way of an order and a copy of everything."""
    order = torch.randperm(NUM_ITEMS, generator=torch.Generator().manual_seed(0))
    return views([part[order] * 2 for part in data], index)


@pytest.fixture
def data():
    return torch.randn(NUM_ITEMS, WIDTH), torch.randn(NUM_ITEMS, WIDTH)


class Training:
    def __init__(self, num_batches=1, hook=lambda module, inputs: None):
        torch.manual_seed(0)
        self.model, self.num_batches = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), num_batches
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model.register_forward_pre_hook(hook)

    def step(self, read, data):
        for index in range(self.num_batches):
            x, y = fed(read, data, index)
            self.model(x).sub(y).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def traced(self, read, data):
        self.step(read, data)
        with trace_step(self.model, self.optimizer) as trace:
            self.step(read, data)
        return trace.result


def other_at_end(model, work):
    with trace_step(model) as trace:
        work().backward()
    return trace.result.end_of_forward["other"]


@pytest.mark.parametrize("num_batches", [1, 3])
def test_a_batch_counts_alike_wherever_its_bytes_are(data, num_batches):
    batches = [own(data, index) for index in range(3)]
    expected, peaks = Training(num_batches).traced(own, data), []
    numpys = lambda _, index: tuple(torch.from_numpy(part.numpy().copy()) for part in batches[index])  # noqa: E731
    for read in (own, views, numpys, shuffled, lambda _, index: batches[index]):
        training = Training(num_batches)
        training.step(read, data)
        with measure_host_peak() as grown, trace_step(training.model, training.optimizer) as trace:
            training.step(read, data)
        found = trace.result
        assert (found.peak, found.end_of_forward) == (expected.peak, expected.end_of_forward)
        assert (found.end_of_forward["other"], sum(found.kept.values())) == (BATCH_BYTES, 0)
        assert found.num_operators == expected.num_operators, "reading is not traced"
        peaks.append(found.held_bytes + grown.peak_bytes)
    overlap = (num_batches > 1) * BATCH_BYTES + 64  # of a batch with the next, where it is freed and not dropped
    assert max(peaks) - min(peaks) <= overlap
    assert found.peak_bytes <= peaks[0] < found.peak_bytes + 1000


def test_what_the_model_keeps_or_makes_of_a_batch_counts(data):
    kept = []
    keeping, doubling = (lambda _, inputs: kept.append(inputs)), (lambda _, inputs: (inputs[0] * 2,))
    assert Training(1, keeping).traced(views, data).kept["other"] == BATCH_BYTES / 2
    assert Training(1, doubling).traced(views, data).end_of_forward["other"] == BATCH_BYTES + BATCH_BYTES / 2

    changing = [Training(2, lambda _, inputs: (inputs[0].mul_(1.5),)) for _ in range(2)]
    copies = [[part.clone() for part in data] for _ in range(2)]
    for _ in range(2):
        changing[0].step(views, copies[0])
    changing[1].traced(views, copies[1])
    assert all(map(torch.equal, *(training.model.parameters() for training in changing))), "reading changes no value"


def test_storages_count_once_and_by_their_largest_use(data):
    x, model = data[0][:BATCH], nn.Linear(WIDTH, WIDTH)

    def same_tensor_twice():
        inputs, targets = fed(lambda: (x, x))
        assert inputs is targets
        return F.mse_loss(model(inputs), targets)

    assert other_at_end(model, same_tensor_twice) == x.nbytes
    uses = other_at_end(model, lambda: model(data[0][:4]).sum() + model(data[0][2:8]).sum())
    assert uses == 4 * 6 * WIDTH, "not a batch of `fed`"
    flat = torch.randn(WIDTH * WIDTH + WIDTH)
    model.weight = nn.Parameter(flat[: WIDTH * WIDTH].view(WIDTH, WIDTH))
    model.bias = nn.Parameter(flat[WIDTH * WIDTH :])
    with trace_step(model) as trace:
        model(x).sum().backward()
    assert trace.result.peak["parameters"] == flat.nbytes


Pair = namedtuple("Pair", "inputs targets")
Batch = type("Batch", (OrderedDict,), {})  # a mapping of its own class, as tokenizers return them


def test_a_batch_keeps_its_form(data):
    x = data[0]
    for plain in (Pair(x, x[:2]), [x, (x[:2], "text", 3)], Batch(inputs=x, targets={"first": x[:2]}, name="text")):
        with trace_step(nn.Linear(2, 2)):
            traced = fed(lambda: plain)  # noqa: B023
        assert (type(traced), str(traced)) == (type(plain), str(plain))
        assert fed(lambda: plain) is plain, "without a trace it is what was read"  # noqa: B023
        assert [*fed_each([plain])] == [plain]


def loaded(values, folder):
    torch.save(values, folder / "weights.pt")
    return torch.load(folder / "weights.pt", mmap=True)


FOREIGN = {
    "torch": lambda values, _: {name: value.clone() for name, value in values.items()},
    "numpy": lambda values, _: {name: torch.from_numpy(value.numpy().copy()) for name, value in values.items()},
    "mmap": loaded,
}


@pytest.mark.parametrize("allocated", FOREIGN.values(), ids=FOREIGN)
def test_what_trains_counts_whoever_allocated_it(data, allocated, tmp_path):
    training = Training()
    training.model.append(nn.BatchNorm1d(WIDTH))
    training.model.load_state_dict(allocated(training.model.state_dict(), tmp_path), assign=True)
    training.optimizer = torch.optim.Adam(training.model.parameters())
    found = training.traced(views, data)
    assert found.peak["parameters"] == sum(p.nbytes for p in training.model.parameters())
    assert found.end_of_forward["other"] == BATCH_BYTES + sum(b.nbytes for b in training.model.buffers())

    state = training.optimizer.state_dict()
    for per_parameter in state["state"].values():
        per_parameter.update(allocated(dict(per_parameter), tmp_path))
    training.optimizer.load_state_dict(state)
    assert training.traced(views, data).peak == found.peak
    weights, model = allocated({"weights": torch.rand(WIDTH)}, tmp_path)["weights"], nn.Linear(WIDTH, WIDTH)
    used = other_at_end(model, lambda: (model(data[0][:BATCH]) * weights).sum())
    assert used == BATCH_BYTES / 2 + weights.nbytes


def test_a_memory_limit_leaves_out_what_feeds(data):
    limit = MemoryLimit(CPU, 100_000 / GIB)
    with limit:
        with feeding():
            made = torch.randn(NUM_ITEMS, WIDTH), torch.randn(NUM_ITEMS, WIDTH)
        training = Training()
        found = training.traced(shuffled, made)
        with torch.no_grad():
            for x, _ in fed_each(views(made, index) for index in range(3)):
                training.model(x)
    assert limit.peak_bytes == found.peak_bytes
    with MemoryLimit(CPU, (BATCH_BYTES - 1) / GIB), pytest.raises(torch.OutOfMemoryError, match="limited to"):
        fed(views, data, 0)


def test_what_data_holds_is_found_wherever_it_is():
    held = SimpleNamespace(whole=torch.ones(1), other=TensorDataset(torch.ones(4)), module=torch, kind=nn.Linear)
    held.itself, held.splits = held, {"train": [torch.ones(2), (torch.ones(3), "text")]}
    assert sorted(map(len, resident(held))) == [1, 2, 3, 4]


def test_a_mapped_file_larger_than_memory_feeds_a_step(tmp_path):
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(40 * GIB)
    items = np.memmap(tmp_path / "large.bin", np.float32, mode="r+", shape=(10 * GIB // WIDTH, WIDTH))
    whole = torch.from_numpy(items)
    found = Training().traced(views, (whole, whole[5000:]))
    assert found.end_of_forward["other"] == BATCH_BYTES
    assert found.peak_bytes < 2**20
