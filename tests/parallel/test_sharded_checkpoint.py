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
STATE = ("model", "optimizers", "scaler", "step", "next_batch", "applied")


@pytest.fixture(scope="module")
def place(tmp_path_factory, pair):
    """The checkpoints of one training by each strategy, and the facts that its two ranks left there."""
    place = tmp_path_factory.mktemp("ranks")
    Training("single").train(SAVED_AT).save(place / "single")
    pair.run("saved_trainings.save_and_resume", place=place)
    return place


@pytest.fixture(scope="module")
def facts(place):
    """The facts of each rank, by strategy and moment."""
    return [torch.load(place / f"facts-{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.fixture
def saved(place, tmp_path):
    """A copy of a checkpoint, to be damaged."""
    return Path(shutil.copytree(place / "fsdp2", tmp_path / "run")) / "checkpoints/last"


def refused(path):
    with pytest.raises(CheckpointError) as error:
        find_checkpoint(path)
    return str(error.value)


def differences(some, other, path=""):
    """The paths of values that are not equal to the last bit."""
    if isinstance(some, torch.Tensor):
        return [] if some.dtype == other.dtype and torch.equal(some, other) else [path]
    if isinstance(some, dict):
        if some.keys() != other.keys():
            return [f"{path}: {some.keys() ^ other.keys()}"]
        return [found for key in some for found in differences(some[key], other[key], f"{path}.{key}")]
    if isinstance(some, list):
        return [found for i, _ in enumerate(some) for found in differences(some[i], other[i], f"{path}[{i}]")]
    return [] if some == other else [f"{path}: {some} {other}"]


def state(facts):
    return {key: facts[key] for key in STATE}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_ranks_go_on_to_the_last_bit(facts, strategy):
    for rank in (0, 1):
        mine = {moment: facts[rank][strategy, moment] for moment in ("saved", "restored", "unbroken", "resumed")}
        assert differences(mine["saved"], mine["restored"]) == []
        assert differences(mine["unbroken"], mine["resumed"]) == []
        assert mine["unbroken"]["step"] == STEPS
        assert 0 < mine["saved"]["applied"] < SAVED_AT, "some steps were skipped, and some applied"
        other = {"ddp": "fsdp2", "fsdp2": "ddp"}[strategy]
        assert differences(mine["saved"], facts[rank][strategy, other]) == [], "another strategy goes on, too"
    first, second = (facts[rank][strategy, "restored"] for rank in (0, 1))
    assert not torch.equal(first["rng"], second["rng"])
    means = [restored["model"]["inner.1.running_mean"] for restored in (first, second)]
    assert not torch.equal(*means), "batch normalization sees other samples on each rank"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_and_one_process_go_on_from_each_other(place, facts, strategy):
    single = Training("single").resumed(place / "single")
    expected = state(single.facts()) | {"next_batch": SAVED_AT // 2}
    afresh = "the random numbers of each are derived afresh"
    for rank in (0, 1):
        found = facts[rank]["single", strategy]
        assert differences(expected, state(found)) == []
        assert found["notes"] == [f"the checkpoint is of one process, this run has 2 ranks: {afresh}"]
    assert not torch.equal(facts[0]["single", strategy]["rng"], facts[1]["single", strategy]["rng"])
    training = Training("single").resumed(place / strategy)
    expected = state(facts[0][strategy, "saved"]) | {"next_batch": 2 * SAVED_AT}
    assert differences(expected, state(training.facts())) == []
    assert training.notes == [f"the checkpoint is of 2 ranks, this run has one process: {afresh}"]
    training.train(STEPS)


@pytest.mark.parametrize("full", [0, 1])
def test_no_room_on_one_rank_is_none_on_all(place, facts, full):
    error = (errno.EFBIG, os.strerror(errno.EFBIG), str(place / "full/checkpoints/last"))
    for rank in (0, 1):
        assert facts[rank]["no room", full] == [error, error]
    assert sorted(path.name for path in (place / "full/checkpoints").iterdir()) == ["last", "previous"]
    assert find_checkpoint(place / "full").note is None


def test_the_place_in_the_data_is_that_of_all_ranks_together(place):
    found = find_checkpoint(place / "ddp")
    assert [found.next_batch(*now) for now in ((4, 1), (8, 1), (2, 4))] == [2 * SAVED_AT, SAVED_AT, SAVED_AT]
    with pytest.raises(CheckpointError) as error:
        found.next_batch(5, 2)
    assert str(error.value) == (
        f"checkpoint {found.path} has seen 64 samples (8 micro-batches of 4 on 2 ranks), not a whole number of "
        "micro-batches of 5 on 2 ranks; change data.batch_size or parallel.num_processes"
    )


def test_torch_itself_reads_each_ranks_part(place):
    first, second = (torch.load(place / f"fsdp2/checkpoints/last/rank-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["world_size"] == second["world_size"] == 2
    assert first["sharded"] == second["sharded"]
    assert first["sharded"]["model.inner.0.weight"] == (0, 5)
    assert first["sharded"]["optimizers.body.inner.0.weight.exp_avg"] == (0, 5)
    assert [tuple(part["model"]["inner.0.weight"].shape) for part in (first, second)] == [(3, 6), (2, 6)]
    first, second = (torch.load(place / f"ddp/checkpoints/last/rank-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["sharded"] == second["sharded"] == {}
    devices = {part["model"]["inner.0.weight"].device.type for part in (first, second)}
    assert devices == {"cpu", "meta"}, "what all ranks have is written once"
    assert not second["model"]["inner.1.running_mean"].is_meta, "it is not the first rank's"


def test_a_damaged_file_of_any_rank_is_refused(saved):
    for file in sorted(saved.iterdir()):
        content = file.read_bytes()
        damaged = [content[: int(share * len(content))] for share in (0, 0.5, 0.99)]
        with zipfile.ZipFile(file) as archive:
            begins = [entry.header_offset for entry in archive.infolist() if "/data/" in entry.filename]
        for begin in begins[:: max(1, len(begins) // 4)]:
            length, extra = struct.unpack("<HH", content[begin + 26 : begin + 30])
            flipped = bytearray(content)
            flipped[begin + 30 + length + extra] ^= 0xFF
            damaged.append(bytes(flipped))
        for bad in damaged:
            file.write_bytes(bad)
            assert "cannot be read" in refused(saved)
        file.write_bytes(content)
    find_checkpoint(saved)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_part_is_named_and_a_part_is_no_checkpoint(saved, rank):
    part = saved / f"rank-{rank}.pt"
    assert refused(part) == f"{part} is a part of the checkpoint {saved}"
    part.unlink()
    assert refused(saved.parents[1]) == f"checkpoint {part} does not exist"


def test_an_unfinished_checkpoint_gives_way_to_the_one_before(saved):
    run, previous = saved.parents[1], saved.with_name("previous")
    for _ in range(2):
        shutil.copytree(saved, previous, dirs_exist_ok=True)
        (saved / "rank-1.pt").unlink()
        found = find_checkpoint(run)
        assert found.path == previous
        assert found.note == f"checkpoint {saved}/rank-1.pt does not exist; going on from previous, of step {SAVED_AT}"
        set_aside(run)
        assert sorted(path.name for path in saved.parent.iterdir()) == ["last.damaged", "previous"]
        assert find_checkpoint(run).path == previous
        shutil.copytree(previous, saved)


class WithoutTheFirst(Parallel):
    """The second of two ranks, to whom the first names a directory that is not here."""

    rank, world_size = 1, 2

    def __init__(self, directory):
        self.directory = directory

    def gather(self, item):
        return [(self.directory, None) if isinstance(item, tuple) else item, item]


def test_ranks_must_share_a_file_system(place, tmp_path):
    checkpoint = find_checkpoint(place / "single").checkpoint
    with pytest.raises(RuntimeError, match=r"rank 0 made for a .* must share the file system of output_dir"):
        save_together(checkpoint, tmp_path, WithoutTheFirst(tmp_path / "elsewhere"))


class Malicious:
    def __reduce__(self):
        return os.system, ("touch run_by_the_checkpoint",)


def saved_by_torch(content):
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


@pytest.mark.parametrize("pickled", [saved_by_torch, pickle.dumps])
def test_no_code_in_a_checkpoint_is_run(saved, pickled, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    for name in ("rank-0.pt", "rank-1.pt"):
        before = (saved / name).read_bytes()
        (saved / name).write_bytes(pickled(Malicious()))
        with pytest.raises(CheckpointError, match="damaged or no checkpoint"):
            find_checkpoint(saved).restored(Training("single").model, 4, SINGLE, CPU)
        (saved / name).write_bytes(before)
    assert list(empty.iterdir()) == []


def test_a_checkpoint_of_another_model_names_a_difference(place):
    found = find_checkpoint(place / "fsdp2")
    require_same_model(found.checkpoint, found.path, Training("single").model, "net")
    with pytest.raises(CheckpointError, match=r"another model \(net\): bias has shape absent there"):
        require_same_model(found.checkpoint, found.path, torch.nn.Linear(2, 2), "other")
    assert found.restored(Training("single").model, 4, SINGLE, CPU)[0].step == SAVED_AT
