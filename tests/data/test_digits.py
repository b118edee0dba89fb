"""The digits are real, whole and split once."""

import subprocess
import sys
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from ampsweep.data.digits import Digits, _images_and_labels
from ampsweep.models.mlp import MLP

CPU = torch.device("cpu")


def hashes(inputs):
    return [tuple(image.flatten().tolist()) for image in inputs]


def test_images_lie_between_zero_and_one():
    inputs, targets = Digits(val_fraction=0.2, batch_size=1000, seed=0, device=CPU).train_batch(0)
    assert (inputs.shape, inputs.dtype, targets.dtype) == ((1000, 1, 8, 8), torch.float32, torch.int64)
    assert (inputs.min(), inputs.max()) == (0, 1)
    assert set(targets.tolist()) == set(range(10))


def test_an_epoch_visits_each_training_digit_once():
    data = Digits(val_fraction=0.2, batch_size=2, seed=0, device=CPU)
    val = [digit for inputs, _ in data.val_batches() for digit in hashes(inputs)]
    train = [digit for index in range(data.num_train_batches) for digit in hashes(data.train_batch(index)[0])]
    assert data.num_train_batches == 719  # 1438 of 1797 digits
    assert (len(train), len(set(train))) == (1438, 1438)
    assert len(val) == 359
    assert not set(train) & set(val)


def test_each_epoch_has_its_own_order():
    data = Digits(val_fraction=0.2, batch_size=1438, seed=0, device=CPU)
    first, second = data.train_batch(0)[1], data.train_batch(1)[1]
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)


def test_the_rest_of_an_epoch_begins_a_batch():
    data = Digits(val_fraction=0.2, batch_size=1000, seed=0, device=CPU)
    digits = [digit for index in range(3) for digit in hashes(data.train_batch(index)[0])]
    assert data.num_train_batches == Fraction(1438, 1000)
    assert len(set(digits[:1438])) == len(set(digits[1438:2876])) == 1438


def test_another_split_is_other_data():
    prints = {Digits(val_fraction=part, batch_size=8, seed=0, device=CPU).fingerprint for part in (0.1, 0.2)}
    assert len(prints) == 2


def test_the_digits_can_be_learned_in_a_few_dozen_steps():
    torch.manual_seed(0)
    data, model = Digits(val_fraction=0.2, batch_size=64, seed=0, device=CPU), MLP(64, 64, 10, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(60):
        inputs, targets = data.train_batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    correct = sum((model(inputs).argmax(-1) == targets).sum() for inputs, targets in data.val_batches())
    assert correct / 359 > 0.9


def test_a_batch_larger_than_the_training_set_is_refused():
    with pytest.raises(ValueError, match="batch_size is 1439, but there are only 1438 training items"):
        Digits(val_fraction=0.2, batch_size=1439, seed=0, device=CPU)


@pytest.mark.parametrize("val_fraction", [0.0, 1.0, -0.2])
def test_a_split_without_either_part_is_refused(val_fraction):
    with pytest.raises(ValueError, match=f"val_fraction must lie between 0 and 1, got {val_fraction}"):
        Digits(val_fraction=val_fraction, batch_size=8, seed=0, device=CPU)


def test_a_missing_scikit_learn_is_named(monkeypatch):
    monkeypatch.setattr("ampsweep.data.digits.find_spec", lambda _: None)
    with pytest.raises(ValueError, match="the digits come with scikit-learn, which is not installed"):
        Digits(val_fraction=0.2, batch_size=8, seed=0, device=CPU)


def test_they_are_those_that_scikit_learn_loads():
    images, labels = load_digits(return_X_y=True)
    found, told = _images_and_labels()
    assert (found == images).all()
    assert (told == labels).all()


def test_a_run_does_not_wait_for_the_import_of_scikit_learn():
    code = (
        "import sys, torch; from ampsweep.data.digits import Digits;"
        "Digits(val_fraction=0.2, batch_size=8, seed=0, device=torch.device('cpu'));"
        "print([name for name in ('sklearn', 'scipy') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
