"""What holds for every kind of data: batches are a function of (seed, index), and validation of neither."""

import pytest
import torch
from devices import needs_cuda
from every_data import OF_THE_SUITE, SYNTHETIC

CPU = torch.device("cpu")


@pytest.fixture(
    params=OF_THE_SUITE,
    ids=lambda make: make.__name__,
)
def make(request, tmp_path):
    def made(**changes):
        sizes = {"num_batches": 5} if request.param in SYNTHETIC else {}
        return request.param(tmp_path, **({"batch_size": 4, "seed": 0, "device": CPU} | sizes | changes))

    return made


def same(left, right):
    return all(torch.equal(*tensors) for tensors in zip(left, right, strict=True))


def test_a_seed_gives_the_same_batches_in_any_order_of_access(make):
    one, other = make(), make()
    forwards = [one.train_batch(index) for index in range(20)]
    backwards = [other.train_batch(index) for index in reversed(range(20))][::-1]
    assert all(map(same, forwards, backwards))


def test_a_resumed_run_sees_the_batches_that_were_left(make):
    uninterrupted = make()
    for index in range(1000):
        expected = uninterrupted.train_batch(index)
    assert same(make().train_batch(999), expected)


def test_another_seed_gives_other_batches(make):
    assert not same(make(seed=0).train_batch(0), make(seed=1).train_batch(0))


def test_seed_and_index_do_not_mix(make):
    assert not same(make(seed=0).train_batch(1), make(seed=1).train_batch(0))


def test_batches_of_an_epoch_differ(make):
    batches = [make().train_batch(index)[0] for index in range(5)]
    assert not any(torch.equal(batches[0], batch) for batch in batches[1:])


def test_validation_is_the_same_every_time_and_for_every_seed(make):
    data = make()
    first = list(data.val_batches())
    data.train_batch(3)
    assert len(first) > 0
    for again in (data.val_batches(), make(seed=7).val_batches()):
        assert all(same(*batches) for batches in zip(first, again, strict=True))


def test_the_fingerprint_is_of_the_content_alone(make):
    assert make().fingerprint == make(seed=1, batch_size=3).fingerprint
    assert len(make().fingerprint) == 16
    int(make().fingerprint, 16)


def test_batches_have_the_promised_size(make):
    data = make(batch_size=3)
    assert data.batch_size == 3
    assert {len(tensor) for index in range(4) for tensor in data.train_batch(index)} == {3}
    assert all(len(inputs) == len(targets) <= 3 for inputs, targets in data.val_batches())


def test_tokens_per_batch_count_inputs_that_are_tokens(make):
    data = make()
    inputs, _ = data.train_batch(0)
    if data.tokens_per_batch is None:
        assert inputs.dim() != 2 or inputs.is_floating_point()
    else:
        assert data.tokens_per_batch == inputs.numel()
        assert inputs.dtype is torch.int64


def test_the_global_random_state_is_left_alone(make):
    before = torch.get_rng_state()
    data = make()
    data.train_batch(0)
    list(data.val_batches())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch_size", [0, -4])
def test_a_batch_without_items_is_refused(make, batch_size):
    with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {batch_size}"):
        make(batch_size=batch_size)


@needs_cuda
def test_a_batch_reaches_the_gpu_without_a_wait(make):
    data, reference = make(device=torch.device("cuda")), make()
    data.train_batch(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = data.train_batch(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(tensor.is_cuda for tensor in batch)
    assert same([tensor.cpu() for tensor in batch], reference.train_batch(1))
