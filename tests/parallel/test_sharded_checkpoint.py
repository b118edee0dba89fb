"""Several ranks write a checkpoint together, and any number of them goes on from it."""

import errno
import io
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from saved_trainings import CPU, SAVED_AT, STEPS, Training

from ampsweep.parallel.base import SINGLE, Parallel
from ampsweep.training.checkpoint import CheckpointError, require_same_model
from ampsweep.training.found_checkpoint import find_checkpoint, set_aside
from ampsweep.training.sharded_checkpoint import save_together

STRATEGIES = ("ddp", "fsdp2")


@pytest.fixture(scope="module")
def place(tmp_path_factory, pair):
    """The checkpoints of one training by each strategy, and what its two ranks tell of them."""
    place = tmp_path_factory.mktemp("ranks")
    Training("single").train(SAVED_AT).save(place / "single")
    pair.run("saved_trainings.save_and_resume", place=place)
    return place


@pytest.fixture(scope="module")
def told(place):
    """What each rank tells, by the strategy and the moment."""
    return [torch.load(place / f"facts-{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.fixture
def saved(place, tmp_path):
    """A copy of a checkpoint, to be damaged."""
    return Path(shutil.copytree(place / "fsdp2", tmp_path / "run")) / "checkpoints/last"


def differences(one, other, path=""):
    """The paths of values that are not equal to the last bit."""
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [path]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{path}: {one.keys() ^ other.keys()}"]
        return [found for key in one for found in differences(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, list):
        return [found for i, _ in enumerate(one) for found in differences(one[i], other[i], f"{path}[{i}]")]
    return [] if one == other else [f"{path}: {one} {other}"]


STATE = ("model", "optimizers", "scaler", "step", "next_batch", "applied")


def state(facts):
    return {key: facts[key] for key in STATE}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_ranks_go_on_to_the_last_bit(told, strategy):
    for rank in (0, 1):
        mine = {moment: told[rank][strategy, moment] for moment in ("saved", "restored", "unbroken", "resumed")}
        assert differences(mine["saved"], mine["restored"]) == []
        assert differences(mine["unbroken"], mine["resumed"]) == []
        assert mine["unbroken"]["step"] == STEPS
        assert 0 < mine["saved"]["applied"] < SAVED_AT, "some steps were skipped, and some applied"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_each_ranks_own_is_each_ranks_own(told, strategy):
    one, other = (told[rank][strategy, "restored"] for rank in (0, 1))
    assert not torch.equal(one["rng"], other["rng"])
    means = [facts["model"]["inner.1.running_mean"] for facts in (one, other)]
    assert not torch.equal(*means), "batch normalization sees other samples on each rank"


@pytest.mark.parametrize(("before", "after"), [("ddp", "fsdp2"), ("fsdp2", "ddp")])
def test_another_strategy_goes_on_with_equal_state(told, before, after):
    for rank in (0, 1):
        assert differences(told[rank][before, "saved"], told[rank][before, after]) == []


@pytest.mark.parametrize("after", STRATEGIES)
def test_two_ranks_go_on_from_one_process(place, told, after):
    single = Training("single").resumed(place / "single")
    for rank in (0, 1):
        found = told[rank]["single", after]
        expected = state(single.facts()) | {"next_batch": SAVED_AT // 2}
        assert differences(expected, state(found)) == []
        assert found["notes"] == [
            "the checkpoint is of one process, this run has 2 ranks: the random numbers of each are derived afresh",
        ]
    assert not torch.equal(told[0]["single", after]["rng"], told[1]["single", after]["rng"])


@pytest.mark.parametrize("before", STRATEGIES)
def test_one_process_goes_on_from_two_ranks(place, told, before):
    training = Training("single").resumed(place / before)
    expected = state(told[0][before, "saved"]) | {"next_batch": 2 * SAVED_AT}
    assert differences(expected, state(training.facts())) == []
    assert training.notes == [
        "the checkpoint is of 2 ranks, this run has one process: the random numbers of each are derived afresh"
    ]
    training.train(STEPS)


@pytest.mark.parametrize("full", [0, 1])
def test_no_room_on_one_rank_is_none_on_all(place, told, full):
    error = (errno.EFBIG, os.strerror(errno.EFBIG), str(place / "full/checkpoints/last"))
    for rank in (0, 1):
        assert told[rank]["no room", full] == [error, error]
    left = sorted(path.name for path in (place / "full/checkpoints").iterdir())
    assert left == ["last", "previous"]
    assert find_checkpoint(place / "full").note is None


def test_the_place_in_the_data_is_that_of_all_ranks_together(place):
    found = find_checkpoint(place / "ddp")
    assert found.next_batch(4, 1) == 2 * SAVED_AT
    assert found.next_batch(8, 1) == SAVED_AT
    assert found.next_batch(2, 4) == SAVED_AT
    with pytest.raises(CheckpointError) as refused:
        found.next_batch(5, 2)
    assert str(refused.value) == (
        f"checkpoint {found.path} has seen 64 samples (8 micro-batches of 4 on 2 ranks), not a whole number of "
        "micro-batches of 5 on 2 ranks; change data.batch_size or parallel.num_processes"
    )


def test_torch_itself_reads_each_ranks_part(place):
    first, second = (torch.load(place / f"fsdp2/checkpoints/last/rank-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["world_size"] == second["world_size"] == 2
    assert first["sharded"] == second["sharded"]
    assert first["sharded"]["model.inner.0.weight"] == (0, 5)
    assert first["sharded"]["optimizers.body.inner.0.weight.exp_avg"] == (0, 5)
    shapes = [tuple(one["model"]["inner.0.weight"].shape) for one in (first, second)]
    assert shapes == [(3, 6), (2, 6)]


def test_what_all_ranks_have_is_written_once(place):
    first, second = (torch.load(place / f"ddp/checkpoints/last/rank-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["sharded"] == second["sharded"] == {}
    assert {one["model"]["inner.0.weight"].device.type for one in (first, second)} == {"cpu", "meta"}
    assert not second["model"]["inner.1.running_mean"].is_meta, "it is not the first rank's"


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file_of_any_rank_is_refused(saved, share):
    for file in sorted(path for path in saved.iterdir()):
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])
        with pytest.raises(CheckpointError, match="cannot be read"):
            find_checkpoint(saved)
        file.write_bytes(content)
    find_checkpoint(saved)


def test_a_flipped_byte_of_a_value_is_refused(saved):
    for file in sorted(path for path in saved.iterdir()):
        content = file.read_bytes()
        with zipfile.ZipFile(file) as archive:
            begins = [one.header_offset for one in archive.infolist() if "/data/" in one.filename and one.file_size]
        for begin in begins[:: max(1, len(begins) // 10)]:
            length, extra = struct.unpack("<HH", content[begin + 26 : begin + 30])
            damaged = bytearray(content)
            damaged[begin + 30 + length + extra] ^= 0xFF
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="cannot be read"):
                find_checkpoint(saved)
        file.write_bytes(content)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_file_is_named(saved, rank):
    (saved / f"rank-{rank}.pt").unlink()
    with pytest.raises(CheckpointError) as refused:
        find_checkpoint(saved.parents[1])
    assert str(refused.value) == f"checkpoint {saved}/rank-{rank}.pt does not exist"


def test_a_part_is_no_checkpoint(saved):
    with pytest.raises(CheckpointError) as refused:
        find_checkpoint(saved / "rank-1.pt")
    assert str(refused.value) == f"{saved}/rank-1.pt is a part of the checkpoint {saved}"


def test_an_unfinished_one_gives_way_to_the_one_before(saved):
    shutil.copytree(saved, saved.with_name("previous"))
    (saved / "rank-1.pt").unlink()
    found = find_checkpoint(saved.parents[1])
    assert found.path.name == "previous"
    assert found.note == f"checkpoint {saved}/rank-1.pt does not exist; going on from previous, of step {SAVED_AT}"


def saved_by_torch(content):
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def test_a_damaged_one_does_not_become_the_one_before(saved):
    run = saved.parents[1]
    for _ in range(2):
        shutil.copytree(saved, saved.with_name("previous"), dirs_exist_ok=True)
        (saved / "rank-0.pt").unlink()
        set_aside(run)
        assert sorted(path.name for path in saved.parent.iterdir()) == ["last.damaged", "previous"]
        assert find_checkpoint(run).path.name == "previous"
        shutil.copytree(saved.with_name("previous"), saved)


class WithoutTheFirst(Parallel):
    """The second of two ranks, to whom the first tells of a directory that is not here."""

    rank, world_size = 1, 2

    def __init__(self, directory):
        self.directory = directory

    def gather(self, item):
        return [(self.directory, None) if isinstance(item, tuple) else item, item]


def test_ranks_that_share_no_file_system_are_told_so(place, tmp_path):
    checkpoint = find_checkpoint(place / "single").checkpoint
    with pytest.raises(RuntimeError, match=r"rank 0 has made for a .* must share the file system of output_dir"):
        save_together(checkpoint, tmp_path, WithoutTheFirst(tmp_path / "elsewhere"))


class Malicious:
    def __reduce__(self):
        return os.system, ("touch run_by_the_checkpoint",)


@pytest.fixture
def where_code_would_leave_a_file(tmp_path, monkeypatch):
    place = tmp_path / "empty"
    place.mkdir()
    monkeypatch.chdir(place)
    yield
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("where_code_would_leave_a_file")
@pytest.mark.parametrize("pickled", [saved_by_torch, pickle.dumps])
def test_no_code_in_it_is_run(saved, pickled):
    for name in ("rank-0.pt", "rank-1.pt"):
        before = (saved / name).read_bytes()
        (saved / name).write_bytes(pickled(Malicious()))
        with pytest.raises(CheckpointError, match="damaged or no checkpoint"):
            find_checkpoint(saved).restored(Training("single").model, 4, SINGLE, CPU)
        (saved / name).write_bytes(before)


def test_a_checkpoint_of_another_model_names_a_difference(place):
    found = find_checkpoint(place / "fsdp2")
    require_same_model(found.checkpoint, found.path, Training("single").model, "net")
    with pytest.raises(CheckpointError, match=r"another model \(net\): bias has shape absent there"):
        require_same_model(found.checkpoint, found.path, torch.nn.Linear(2, 2), "other")
    assert found.restored(Training("single").model, 4, SINGLE, CPU)[0].step == SAVED_AT
