"""Token ids come from nanoGPT's files."""

import numpy as np
import pytest
import torch

from ampsweep.data.tokens import Tokens


def tokens(path, **changes):
    common = {"vocab_size": 1000, "seq_len": 4, "val_fraction": 0.1, "num_val_batches": 2, "batch_size": 2, "seed": 0}
    return Tokens(path=str(path), **(common | {"device": torch.device("cpu")} | changes))


def written(path, ids, dtype="uint16"):
    np.asarray(ids, dtype=dtype).tofile(path)
    return path


@pytest.fixture
def counting(tmp_path):
    """A file whose id at each position is that position."""
    return written(tmp_path / "counting.bin", range(1000))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
def test_ids_are_read_in_the_type_they_were_written_in(tmp_path, dtype):
    data = tokens(written(tmp_path / "ids.bin", range(1000), dtype), dtype=dtype)
    inputs, targets = data.train_batch(0)
    assert inputs.dtype is torch.int64
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs[:, 1:], inputs[:, :-1] + 1)


def test_the_tail_is_held_out(counting):
    data = tokens(counting, val_fraction=0.1)
    assert max(data.train_batch(index)[1].max() for index in range(2000)) == 899
    assert [inputs[0, 0].item() for inputs, _ in data.val_batches()] == [900, 948]


def test_a_second_file_validates_instead(counting, tmp_path):
    other = written(tmp_path / "val.bin", range(500, 600))
    data = tokens(counting, val_path=str(other))
    assert max(data.train_batch(index)[1].max() for index in range(3000)) == 999
    assert next(iter(data.val_batches()))[0][0, 0] == 500
    assert data.fingerprint != tokens(counting).fingerprint


def test_a_changed_id_changes_the_fingerprint(counting, tmp_path):
    ids = list(range(1000))
    ids[700] = 3
    assert tokens(written(tmp_path / "changed.bin", ids)).fingerprint != tokens(counting).fingerprint


def test_an_appended_id_changes_the_fingerprint_of_a_large_file(tmp_path):
    small, large = (tokens(written(tmp_path / f"{n}.bin", np.zeros(n))) for n in (2_000_000, 2_000_001))
    assert small.fingerprint != large.fingerprint


def test_ids_within_the_vocabulary_are_valid(counting):
    tokens(counting).validate()


def test_the_first_id_outside_the_vocabulary_is_named(counting):
    with pytest.raises(ValueError, match=r"counting\.bin has token id 990 at position 990, outside the .* of 990"):
        tokens(counting, vocab_size=990).validate()


def test_a_negative_id_is_outside_the_vocabulary(tmp_path):
    path = written(tmp_path / "ids.bin", [*range(500), -1], "int32")
    with pytest.raises(ValueError, match="token id -1 at position 500"):
        tokens(path, dtype="int32").validate()


def test_the_validation_file_is_validated_too(counting, tmp_path):
    other = written(tmp_path / "val.bin", [*range(100), 5000])
    with pytest.raises(ValueError, match=r"val\.bin has token id 5000 at position 100"):
        tokens(counting, val_path=str(other)).validate()


def test_a_wrong_id_far_into_a_large_file_is_found(tmp_path):
    ids = np.zeros(2**24 + 5, dtype=np.uint8)
    ids[-2] = 200
    data = tokens(written(tmp_path / "large.bin", ids, "uint8"), dtype="uint8", vocab_size=100)
    with pytest.raises(ValueError, match=f"token id 200 at position {2**24 + 3}"):
        data.validate()


def test_a_torn_file_is_refused(tmp_path):
    (tmp_path / "torn.bin").write_bytes(bytes(1001))
    with pytest.raises(ValueError, match=r"torn\.bin is no sequence of uint16: its size is no multiple of 2 bytes"):
        tokens(tmp_path / "torn.bin")


def test_a_type_that_holds_no_ids_is_refused(counting):
    with pytest.raises(ValueError, match="must be one of uint8, uint16, uint32, int32, int64, got float32"):
        tokens(counting, dtype="float32")


@pytest.mark.parametrize("option", ["path", "val_path"])
def test_a_missing_file_is_named(counting, tmp_path, option):
    files = {"path": str(counting), option: str(tmp_path / "absent.bin")}
    with pytest.raises(ValueError, match=r"absent\.bin cannot be read: No such file or directory"):
        tokens(**files)


def test_a_file_shorter_than_a_batch_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has 9 tokens for training, but batches of 4 with seq_len 4 need at least 17"):
        tokens(written(tmp_path / "short.bin", range(10)), batch_size=4)


def test_a_vocabulary_below_one_is_refused(counting):
    with pytest.raises(ValueError, match="vocab_size must be at least 1, got 0"):
        tokens(counting, vocab_size=0)
