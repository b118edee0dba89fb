"""Crops of token ids from nanoGPT's files, and of the bytes of a text."""

import numpy as np
import pytest
import torch

from ampsweep.data.tokens import Text, Tokens

CROPS = {"val_fraction": 0.1, "num_val_batches": 2, "seq_len": 4, "batch_size": 2, "seed": 0}
CROPS["device"] = torch.device("cpu")


def text(path=None, **changes):
    return Text(path=None if path is None else str(path), **CROPS | changes)


def tokens(path, **changes):
    return Tokens(path=str(path), **{"vocab_size": 1000} | CROPS | changes)


def written(path, ids, dtype="uint16"):
    np.asarray(ids, dtype=dtype).tofile(path)
    return path


@pytest.fixture
def alphabet(tmp_path):
    """A text whose byte at each position is that position."""
    return written(tmp_path / "alphabet.txt", range(200), "uint8")


@pytest.fixture
def counting(tmp_path):
    """A file whose id at each position is that position."""
    return written(tmp_path / "counting.bin", range(1000))


def starts(data):
    return [crop[0].item() for inputs, _ in data.val_batches() for crop in inputs]


def last_target(data):
    return max(data.train_batch(index)[1].max() for index in range(3000))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64", "text"])
def test_targets_are_the_inputs_one_token_later(tmp_path, alphabet, dtype):
    path = alphabet if dtype == "text" else written(tmp_path / "ids.bin", range(1000), dtype)
    data = text(path) if dtype == "text" else tokens(path, dtype=dtype)
    inputs, targets = data.train_batch(0)
    assert (inputs.shape, inputs.dtype, data.num_train_batches) == ((2, 4), torch.int64, None)
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs[:, 1:], inputs[:, :-1] + 1)


def test_the_default_text_is_english():
    content = bytes(text(seq_len=20_000).train_batch(0)[0].flatten().tolist()).decode(errors="replace")
    assert all(word in content for word in (" the ", " is ", " of ", "object"))


def test_the_tail_is_held_out_and_spread_evenly(alphabet, counting, tmp_path):
    data = text(alphabet, val_fraction=0.25)
    seen = torch.cat([torch.cat(data.train_batch(index)) for index in range(2000)])
    assert set(seen.flatten().tolist()) == set(range(150))
    assert starts(data) == [150 + crop * 46 // 4 for crop in range(4)]  # 50 bytes hold 46 crops with a target
    short = text(alphabet, val_fraction=0.04, num_val_batches=100, batch_size=3)
    assert starts(short) == [192, 193, 194, 195], "each crop once"
    assert [len(inputs) for inputs, _ in short.val_batches()] == [3, 1]
    assert (last_target(tokens(counting)), starts(tokens(counting, batch_size=1))) == (899, [900, 948])
    other = tokens(counting, val_path=str(written(tmp_path / "val.bin", range(500, 600))))
    assert (last_target(other), starts(other)[0]) == (999, 500), "a second file validates instead"
    assert other.fingerprint != tokens(counting).fingerprint


def test_fingerprints_tell_files_apart(alphabet, counting, tmp_path):
    reversed_text = written(tmp_path / "other.txt", range(199, -1, -1), "uint8")
    assert len({text(path).fingerprint for path in (None, alphabet, reversed_text)}) == 3
    ids = [*range(700), 3, *range(701, 1000)]
    assert tokens(written(tmp_path / "changed.bin", ids)).fingerprint != tokens(counting).fingerprint
    large, larger = (tokens(written(tmp_path / f"{n}.bin", np.zeros(n))) for n in (2_000_000, 2_000_001))
    assert large.fingerprint != larger.fingerprint


def test_the_first_id_outside_the_vocabulary_is_named(counting, tmp_path):
    tokens(counting).validate()
    ids = np.zeros(2**24 + 5, dtype=np.uint8)
    ids[-2] = 200
    large, val = written(tmp_path / "large.bin", ids, "uint8"), written(tmp_path / "val.bin", [*range(100), 5000])
    negative = written(tmp_path / "ids.bin", [*range(500), -1], "int32")
    for data, sentence in (
        (tokens(counting, vocab_size=990), r"counting\.bin has token id 990 at position 990, outside the .* of 990"),
        (tokens(negative, dtype="int32"), "id -1 at position 500"),
        (tokens(counting, val_path=str(val)), r"val\.bin has token id 5000 at position 100"),
        (tokens(large, dtype="uint8", vocab_size=100), f"token id 200 at position {2**24 + 3}"),
    ):
        with pytest.raises(ValueError, match=sentence):
            data.validate()


def test_files_and_settings_that_do_not_fit_are_refused(alphabet, counting, monkeypatch):
    monkeypatch.chdir(alphabet.parent)
    (alphabet.parent / "empty").touch()
    (alphabet.parent / "torn").write_bytes(bytes(1001))
    for make, changes, sentence in (
        (text, {"path": "absent.txt"}, r"data file .*absent\.txt cannot be read: No such file or directory"),
        (text, {"path": "empty"}, "empty is empty"),
        (text, {"batch_size": 45}, "has 180 tokens for training, but batches of 45 with seq_len 4 need at least 181"),
        (text, {"val_fraction": 0.02}, "has 4 tokens for validation, but batches of 2 .* need at least 5"),
        (tokens, {"val_path": "absent.bin"}, r"absent\.bin cannot be read: No such file or directory"),
        (tokens, {"path": "torn"}, r"torn is no sequence of uint16: its size is no multiple of 2 bytes"),
        (tokens, {"dtype": "float32"}, "must be one of uint8, uint16, uint32, int32, int64, got float32"),
    ):
        with pytest.raises(ValueError, match=sentence):
            make(**{"path": alphabet if make is text else counting} | changes)
