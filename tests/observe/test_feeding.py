"""What feeds a training is none of its memory; what trains is, whoever allocated it."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from devices import needs_cuda
from torch import nn
from torch.utils.data import TensorDataset

from ampsweep.data.synthetic import SyntheticRegression
from ampsweep.observe.feeding import fed, fed_each, feeding, resident
from ampsweep.observe.host_memory import measure_host_peak
from ampsweep.observe.memory_limit import MemoryLimit
from ampsweep.observe.step import trace_step
from ampsweep.text import GIB

CPU = torch.device("cpu")
WIDTH, BATCH = 16, 8
BATCH_BYTES = 2 * 4 * BATCH * WIDTH
NUM_ITEMS = 10_000


def own(data, index):
    """New tensors."""
    return tuple(part[torch.arange(index * BATCH, (index + 1) * BATCH)] for part in data)


def views(data, index):
    """Views into the whole data set."""
    return tuple(part[index * BATCH : (index + 1) * BATCH] for part in data)


def numpys(data, index):
    """Tensors in memory that NumPy allocated."""
    return tuple(torch.from_numpy(part[index * BATCH : (index + 1) * BATCH].numpy().copy()) for part in data)


def shuffled(data, index):
    """New tensors, by way of an order and a copy of everything."""
    order = torch.randperm(NUM_ITEMS, generator=torch.Generator().manual_seed(0))
    return views([part[order] * 2 for part in data], index)


@pytest.fixture
def data():
    return torch.randn(NUM_ITEMS, WIDTH), torch.randn(NUM_ITEMS, WIDTH)


class Training:
    """A linear model and its optimizer."""

    def __init__(self, num_batches=1):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.num_batches = num_batches
        self.seen = []

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


@pytest.mark.parametrize("num_batches", [1, 3])
@pytest.mark.parametrize("read", [views, numpys, shuffled], ids=lambda read: read.__name__)
def test_a_batch_counts_alike_wherever_its_bytes_are(data, read, num_batches):
    training, plain = Training(num_batches), Training(num_batches)
    found, expected = training.traced(read, data), plain.traced(own, data)
    assert (found.peak, found.end_of_forward, found.kept) == (expected.peak, expected.end_of_forward, expected.kept)
    assert found.end_of_forward["other"] == BATCH_BYTES
    assert found.num_operators == expected.num_operators, "reading is not traced"
    assert sum(found.kept.values()) == 0


@pytest.mark.parametrize("num_batches", [1, 3])
def test_nor_does_the_allocators_own_peak_change(data, num_batches):
    resident = [own(data, index) for index in range(3)]
    peaks = []
    for read in (own, views, numpys, shuffled, lambda _, index: resident[index]):
        training = Training(num_batches)
        training.step(read, data)
        with measure_host_peak() as grown, trace_step(training.model, training.optimizer) as trace:
            training.step(read, data)
        peaks.append(trace.result.held_bytes + grown.peak_bytes)
    overlap = (num_batches > 1) * BATCH_BYTES + 64  # of a batch with the next, where it is freed and not dropped
    assert max(peaks) - min(peaks) <= overlap
    assert trace.result.peak_bytes <= peaks[0] < trace.result.peak_bytes + 1000


def test_a_resident_batch_counts_only_until_the_next(data):
    resident = [own(data, index) for index in range(3)]
    found = Training(3).traced(lambda _, index: resident[index], data)
    assert found.end_of_forward["other"] == BATCH_BYTES
    assert sum(found.kept.values()) == 0


def test_a_batch_that_the_model_keeps_is_seen(data):
    kept, training = [], Training()
    training.model.register_forward_pre_hook(lambda _, inputs: kept.append(inputs))
    assert training.traced(views, data).kept["other"] == BATCH_BYTES / 2


def test_what_is_made_of_a_batch_counts(data):
    training = Training()
    training.model.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
    assert training.traced(views, data).end_of_forward["other"] == BATCH_BYTES + BATCH_BYTES / 2


@pytest.mark.parametrize("in_place", [False, True])
def test_reading_under_a_trace_computes_the_same(data, in_place):
    parameters = []
    for traces in (False, True):
        training = Training(2)
        if in_place:
            training.model.register_forward_pre_hook(lambda _, inputs: (inputs[0].mul_(1.5),))
        copies = [part.clone() for part in data]
        training.traced(views, copies) if traces else [training.step(views, copies) for _ in range(2)]
        parameters.append([p.detach() for p in training.model.parameters()])
    assert all(map(torch.equal, *parameters))


def test_a_tensor_counts_once_in_a_batch(data):
    model, x = nn.Linear(WIDTH, WIDTH), data[0][:BATCH]
    with trace_step(model) as trace:
        inputs, targets = fed(lambda: (x, x))
        F.mse_loss(model(inputs), targets).backward()
    assert inputs is targets
    assert trace.result.end_of_forward["other"] == x.nbytes


Pair = namedtuple("Pair", "inputs targets")


class Batch(OrderedDict):
    """A mapping of its own class, as tokenizers return them."""


@pytest.mark.parametrize(
    "make",
    [
        lambda x: Pair(x, x[:2]),
        lambda x: [x, (x[:2], "text", 3)],
        lambda x: Batch(inputs=x, targets={"first": x[:2]}, name="text"),
    ],
)
def test_a_batch_keeps_its_form(data, make):
    plain = make(data[0])
    with trace_step(nn.Linear(2, 2)):
        traced = fed(make, data[0])
    assert type(traced) is type(plain)
    assert str(traced) == str(plain)


def test_without_a_count_a_batch_is_what_was_read(data):
    batch = views(data, 0)
    assert fed(lambda: batch) is batch
    assert [*fed_each([batch])] == [batch]


def test_a_foreign_storage_counts_by_its_largest_use(data):
    model = nn.Linear(WIDTH, WIDTH)
    with trace_step(model) as trace:
        first, second = data[0][:4], data[0][2:8]
        (model(first).sum() + model(second).sum()).backward()
    assert trace.result.end_of_forward["other"] == 4 * 6 * WIDTH


def loaded(values, folder, mmap):
    torch.save(values, folder / "weights.pt")
    return torch.load(folder / "weights.pt", mmap=mmap)


FOREIGN = {
    "torch": lambda values, _: {name: value.clone() for name, value in values.items()},
    "numpy": lambda values, _: {name: torch.from_numpy(value.numpy().copy()) for name, value in values.items()},
    "load": lambda values, folder: loaded(values, folder, mmap=False),
    "mmap": lambda values, folder: loaded(values, folder, mmap=True),
}


@pytest.fixture(params=FOREIGN)
def foreign(request, tmp_path):
    return lambda values: FOREIGN[request.param](values, tmp_path)


def test_parameters_count_whoever_allocated_them(data, foreign):
    training = Training()
    buffers = nn.BatchNorm1d(WIDTH)
    training.model.append(buffers)
    training.model.load_state_dict(foreign(training.model.state_dict()), assign=True)
    training.optimizer = torch.optim.Adam(training.model.parameters())
    found = training.traced(views, data)
    num_bytes = sum(p.nbytes for p in training.model.parameters())
    assert found.peak["parameters"] == num_bytes
    assert found.end_of_forward["other"] == BATCH_BYTES + sum(b.nbytes for b in training.model.buffers())


def test_optimizer_state_counts_whoever_allocated_it(data, foreign):
    training = Training()
    expected = training.traced(views, data)
    state = training.optimizer.state_dict()
    for per_parameter in state["state"].values():
        per_parameter.update(foreign(dict(per_parameter)))
    training.optimizer.load_state_dict(state)
    assert training.traced(views, data).peak == expected.peak


def test_constants_count_whoever_allocated_them(data, foreign):
    weights = foreign({"weights": torch.rand(WIDTH)})["weights"]
    model = nn.Linear(WIDTH, WIDTH)
    with trace_step(model) as trace:
        (model(data[0][:BATCH]) * weights).sum().backward()
    assert trace.result.end_of_forward["other"] == BATCH_BYTES / 2 + weights.nbytes


def test_parameters_in_one_storage_count_as_that(data):
    flat = torch.randn(WIDTH * WIDTH + WIDTH)
    model = nn.Linear(WIDTH, WIDTH)
    model.weight = nn.Parameter(flat[: WIDTH * WIDTH].view(WIDTH, WIDTH))
    model.bias = nn.Parameter(flat[WIDTH * WIDTH :])
    with trace_step(model) as trace:
        model(data[0][:BATCH]).sum().backward()
    assert trace.result.peak["parameters"] == flat.nbytes


def test_a_memory_limit_leaves_out_what_feeds():
    limit = MemoryLimit(CPU, 100_000 / GIB)
    with limit:
        with feeding():
            data = torch.randn(NUM_ITEMS, WIDTH), torch.randn(NUM_ITEMS, WIDTH)
        training = Training()
        found = training.traced(shuffled, data)
        with torch.no_grad():
            for x, _ in fed_each(views(data, index) for index in range(3)):
                training.model(x)
    assert limit.peak_bytes == found.peak_bytes


def test_a_batch_can_be_what_exceeds_a_memory_limit(data):
    with MemoryLimit(CPU, (BATCH_BYTES - 1) / GIB), pytest.raises(torch.OutOfMemoryError, match="limited to"):
        fed(views, data, 0)


class Held:
    """Holds tensors in all kinds of ways."""

    def __init__(self):
        self.whole = torch.ones(1)
        self.splits = {"train": [torch.ones(2), (torch.ones(3), "text")], "module": torch, "class": Held}
        self.other, self.itself = TensorDataset(torch.ones(4)), self


def test_what_data_holds_is_found_wherever_it_is():
    assert sorted(map(len, resident(Held()))) == [1, 2, 3, 4]


@needs_cuda
def test_data_on_an_accelerator_is_a_category_of_its_own():
    device = torch.device("cuda", 0)
    config = {"in_features": WIDTH, "out_features": WIDTH, "num_batches": 5, "batch_size": BATCH, "seed": 0}
    data = SyntheticRegression(**config, device=device)
    model = nn.Linear(WIDTH, WIDTH, device=device)
    with trace_step(model, data=resident(data)) as trace:
        x, y = fed(data.train_batch, 0)
        F.mse_loss(model(x), y).backward()
    assert trace.result.end_of_forward["data"] == 6 * BATCH_BYTES  # one is for validation
    assert trace.result.end_of_forward["other"] == 0


def test_a_mapped_file_larger_than_memory_feeds_a_step(tmp_path):
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(40 * GIB)
    items = np.memmap(path, np.float32, mode="r+", shape=(10 * GIB // WIDTH, WIDTH))
    whole = torch.from_numpy(items)
    found = Training().traced(views, (whole, whole[5000:]))
    assert found.end_of_forward["other"] == BATCH_BYTES
    assert found.peak_bytes < 2**20
