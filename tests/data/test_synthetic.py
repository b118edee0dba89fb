"""Synthetic data is resident, as in the PyTorch AMP recipe."""

import pytest
import torch

from ampsweep.data.synthetic import SyntheticImages, SyntheticRegression, SyntheticTokens

COMMON = {"num_batches": 3, "batch_size": 4, "seed": 0, "device": torch.device("cpu")}


def test_an_epoch_visits_every_resident_batch_once():
    data = SyntheticRegression(in_features=2, out_features=1, **COMMON)
    assert data.num_train_batches == 3
    assert data.train_batch(4)[0] is data.train_batch(1)[0]
    assert len({id(data.train_batch(index)[0]) for index in range(9)}) == 3


def test_regression_is_normal_in_and_out():
    data = SyntheticRegression(in_features=200, out_features=100, **COMMON)
    inputs, targets = data.train_batch(0)
    assert (inputs.shape, targets.shape) == ((4, 200), (4, 100))
    assert inputs.dtype is targets.dtype is torch.float32
    assert inputs.std().item() == pytest.approx(1, abs=0.1)
    assert inputs.mean().item() == pytest.approx(0, abs=0.1)


def test_tokens_cover_the_vocabulary_and_targets_come_next():
    data = SyntheticTokens(vocab_size=5, seq_len=50, **COMMON)
    tokens, next_tokens = data.train_batch(0)
    assert set(tokens.flatten().tolist()) == set(range(5))
    assert torch.equal(tokens[:, 1:], next_tokens[:, :-1])
    assert data.tokens_per_batch == 4 * 50


def test_images_come_with_classes():
    images, classes = SyntheticImages(image_size=8, in_channels=3, num_classes=2, **COMMON).train_batch(0)
    assert (images.shape, images.dtype) == ((4, 3, 8, 8), torch.float32)
    assert (classes.shape, classes.dtype) == ((4,), torch.int64)
    assert classes.max() < 2


def test_the_fingerprint_tells_sizes_and_kinds_apart():
    made = [
        SyntheticRegression(in_features=2, out_features=3, **COMMON),
        SyntheticRegression(in_features=3, out_features=2, **COMMON),
        SyntheticRegression(in_features=2, out_features=3, **(COMMON | {"num_batches": 4})),
        SyntheticTokens(vocab_size=2, seq_len=3, **COMMON),
    ]
    assert len({data.fingerprint for data in made}) == len(made)


@pytest.mark.parametrize("name", ["in_features", "out_features", "num_batches"])
def test_sizes_below_one_are_refused(name):
    sizes = {"in_features": 2, "out_features": 3} | COMMON | {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        SyntheticRegression(**sizes)
