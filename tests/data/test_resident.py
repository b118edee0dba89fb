"""Data resident on the device: scikit-learn's digits, whole and split once, and synthetic data."""

import sys

import pytest
import torch
from sklearn.datasets import load_digits

from ampsweep.data.digits import Digits
from ampsweep.data.synthetic import SyntheticImages, SyntheticRegression, SyntheticTokens

CPU = torch.device("cpu")
COMMON = {"num_batches": 3, "batch_size": 4, "seed": 0, "device": CPU}


def digits(batch_size, val_fraction=0.2):
    return Digits(val_fraction=val_fraction, batch_size=batch_size, seed=0, device=CPU)


def test_digits_are_those_of_scikit_learn_scaled_to_one_and_split_once():
    images, labels = load_digits(return_X_y=True)
    by_image = {tuple(image): label for image, label in zip((images / 16).tolist(), labels, strict=True)}
    data = digits(2)
    batches = [data.train_batch(index) for index in range(719)]
    assert data.num_train_batches == 719  # 1438 of 1797 digits
    inputs, targets = batches[0]
    assert (inputs.shape, inputs.dtype, targets.dtype) == ((2, 1, 8, 8), torch.float32, torch.int64)
    train, val = (
        [(tuple(image.flatten().tolist()), label.item()) for batch in part for image, label in zip(*batch, strict=True)]
        for part in (batches, data.val_batches())
    )
    assert (len(train), len(val)) == (1438, 359)
    assert dict(train) | dict(val) == by_image, "each once"


def test_digits_are_refused_and_told_apart(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # they do without its slow import
    assert digits(8, val_fraction=0.1).fingerprint != digits(8, val_fraction=0.2).fingerprint
    with pytest.raises(ValueError, match="batch_size is 1439, but there are only 1438 training items"):
        digits(1439)
    monkeypatch.setattr("ampsweep.data.digits.find_spec", lambda _: None)
    with pytest.raises(ValueError, match="the digits come with scikit-learn, which is not installed"):
        digits(8)


def test_synthetic_values_have_their_distribution_and_types():
    data = SyntheticRegression(in_features=200, out_features=100, **COMMON)
    assert data.num_train_batches == len({id(data.train_batch(index)[0]) for index in range(9)}) == 3
    inputs, targets = data.train_batch(0)
    assert data.train_batch(3)[0] is inputs, "batches are resident"
    assert (inputs.shape, targets.shape) == ((4, 200), (4, 100))
    assert inputs.dtype is targets.dtype is torch.float32
    for values in (inputs, targets):
        assert (values.std().item(), values.mean().item()) == pytest.approx((1, 0), abs=0.15)
    data = SyntheticTokens(vocab_size=5, seq_len=50, **COMMON)
    tokens, next_tokens = data.train_batch(0)
    assert set(tokens.flatten().tolist()) == set(range(5))
    assert torch.equal(tokens[:, 1:], next_tokens[:, :-1])
    assert data.tokens_per_batch == 4 * 50
    images, classes = SyntheticImages(image_size=8, in_channels=3, num_classes=2, **COMMON).train_batch(0)
    assert (images.shape, images.dtype) == ((4, 3, 8, 8), torch.float32)
    assert (classes.shape, classes.dtype, classes.max().item()) == ((4,), torch.int64, 1)


def test_synthetic_sizes_are_fingerprinted():
    def make(**changes):
        return SyntheticRegression(**{"in_features": 2, "out_features": 3} | COMMON | changes)

    made = [make(), make(in_features=3, out_features=2), make(num_batches=4)]
    made += [SyntheticTokens(vocab_size=2, seq_len=3, **COMMON)]
    assert len({data.fingerprint for data in made}) == len(made)
