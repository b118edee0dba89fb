"""Text is read as bytes, from a file or from Python's own manual."""

import math

import pytest
import torch
import torch.nn.functional as F

from ampsweep.data.text import Text
from ampsweep.models.gpt import GPT


def text(path=None, **changes):
    common = {
        "seq_len": 4,
        "val_fraction": 0.1,
        "num_val_batches": 2,
        "batch_size": 2,
        "seed": 0,
        "device": torch.device("cpu"),
    }
    return Text(path=None if path is None else str(path), **(common | changes))


@pytest.fixture
def alphabet(tmp_path):
    """A file whose byte at each position is that position."""
    path = tmp_path / "alphabet.txt"
    path.write_bytes(bytes(range(200)))
    return path


def test_targets_are_the_inputs_one_byte_later(alphabet):
    tokens, next_tokens = text(alphabet).train_batch(0)
    assert (tokens.shape, tokens.dtype) == ((2, 4), torch.int64)
    assert torch.equal(next_tokens, tokens + 1)
    assert torch.equal(tokens[:, 1:], tokens[:, :-1] + 1)


def test_training_reaches_every_byte_but_the_held_out_tail(alphabet):
    data = text(alphabet, val_fraction=0.25)
    batches = [data.train_batch(index) for index in range(2000)]
    seen = {token for batch in batches for part in batch for token in part.flatten().tolist()}
    assert seen == set(range(150))


def test_validation_is_spread_evenly_over_the_held_out_tail(alphabet):
    batches = list(text(alphabet, val_fraction=0.25, num_val_batches=2, batch_size=2).val_batches())
    starts = [crop[0].item() for inputs, _ in batches for crop in inputs]
    assert starts == [150 + crop * 46 // 4 for crop in range(4)]  # 50 bytes hold 46 crops of 4 bytes and a target


def test_a_short_tail_gives_each_crop_once(alphabet):
    batches = list(text(alphabet, val_fraction=0.04, num_val_batches=100, batch_size=3).val_batches())
    assert [crop[0].item() for inputs, _ in batches for crop in inputs] == [192, 193, 194, 195]
    assert [len(inputs) for inputs, _ in batches] == [3, 1]


def test_the_default_is_real_english():
    content = bytes(text(seq_len=20_000).train_batch(0)[0].flatten().tolist()).decode(errors="replace")
    for word in (" the ", " is ", " of ", "object"):
        assert word in content


def test_another_text_has_another_fingerprint(alphabet, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(bytes(reversed(range(200))))
    assert len({text(path).fingerprint for path in (None, alphabet, other)}) == 3


def test_there_are_no_epochs(alphabet):
    assert text(alphabet).num_train_batches is None


def test_a_small_gpt_learns_english_in_a_few_dozen_steps():
    torch.manual_seed(0)
    data = text(seq_len=32, batch_size=8)
    model = GPT(vocab_size=data.vocab_size, seq_len=32, num_layers=1, hidden_size=32, num_heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(60):
        tokens, next_tokens = data.train_batch(step)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), next_tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(256), rel=0.05)
    assert sum(losses[-5:]) / 5 < 3.3  # the text is of the Python that runs: 3.21 with 3.12


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"data file .*absent\.txt cannot be read: No such file or directory"):
        text(tmp_path / "absent.txt")


def test_a_directory_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        text(tmp_path)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt is empty"):
        text(tmp_path / "empty.txt")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 45}, "has 180 tokens for training, but batches of 45 with seq_len 4 need at least 181"),
        ({"val_fraction": 0.02}, "has 4 tokens for validation, but batches of 2 with seq_len 4 need at least 5"),
        ({"seq_len": 0}, "seq_len must be at least 1, got 0"),
        ({"num_val_batches": 0}, "num_val_batches must be at least 1, got 0"),
        ({"val_fraction": 1.5}, "val_fraction must lie between 0 and 1, got 1.5"),
    ],
)
def test_what_does_not_fit_the_text_is_refused(alphabet, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        text(alphabet, **changes)
