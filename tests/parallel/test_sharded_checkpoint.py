"""Several ranks write a checkpoint together, and any number of them goes on from it."""

import errno
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import resumed, whole_and_in_two
from trainings import CPU, OWN, STRATEGIES, Training, assert_same, composed, single

from ampsweep.parallel.base import SINGLE
from ampsweep.training.checkpoint import CheckpointError, require_same_model
from ampsweep.training.found_checkpoint import find_checkpoint, set_aside
from ampsweep.training.sharded_checkpoint import save_together

STEPS, SAVED_AT = 12, 8
TRAINING = (
    *OWN,
    *("model._target_=rank_models.EveryState", "data.batch_size=4"),
    *(f"trainer.steps={STEPS}", f"trainer.checkpoint_every={SAVED_AT}"),
    *("task=custom", "task._target_=rank_models.TwoOptimizers", "optimizer=adamw", "optimizer.lr=0.01"),
    "+optimizer.each.tied={_target_: torch.optim.SGD, lr: 0.01, momentum: 0.9}",
    *("precision=amp_fp16", "precision.init_scale=1048576.0", "precision.growth_interval=4"),
)
"""Two optimizers, and a scale that skips the first steps until it fits, and grows later."""
CONFIGS = {name: composed(*TRAINING, *STRATEGIES[key]) for name, key in (("ddp", "ddp"), ("fsdp2", "autocast"))}
ALONE = single(CONFIGS["ddp"], batches=1)
AFRESH = "the random numbers of each are derived afresh"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def facts(place, pair):
    """The facts of each rank by strategy, with checkpoints in `place`, also of one process."""
    whole_and_in_two(None, ALONE, place / "single")
    return {name: pair.run("whole_and_in_two", config=config, place=place / name) for name, config in CONFIGS.items()}


@pytest.fixture
def saved(facts, place, tmp_path):
    """A copy of a checkpoint, to be damaged."""
    return Path(shutil.copytree(place / "fsdp2", tmp_path / "run")) / "checkpoints/last"


def refused(path):
    with pytest.raises(CheckpointError) as error:
        find_checkpoint(path)
    return str(error.value)


def without_chance(facts, **others):
    """The facts that do not depend on who trains."""
    return {key: value for key, value in facts.items() if key != "rng"} | others


@pytest.mark.parametrize(("strategy", "other"), [("ddp", "fsdp2"), ("fsdp2", "ddp")])
def test_ranks_go_on_to_the_last_bit_by_either_strategy(pair, facts, place, strategy, other):
    of_other = pair.run("resumed", config=CONFIGS[other], path=place / strategy)
    for own, (from_other, notes) in zip(facts[strategy], of_other, strict=True):
        assert_same(own["restored"], own["saved"])
        assert_same(own["resumed"], own["ended"])
        assert_same(from_other, own["saved"])
        assert own["notes"] == notes == []
        assert own["resumed"]["step"] == STEPS
        assert 0 < own["saved"]["applied"] < SAVED_AT, "some steps were skipped, and some applied"
    first, second = (own["restored"] for own in facts[strategy])
    assert not torch.equal(first["rng"], second["rng"])
    means = [restored["model"]["first.1.running_mean"] for restored in (first, second)]
    assert not torch.equal(*means), "batch normalization sees other samples on each rank"


@pytest.mark.parametrize("strategy", CONFIGS)
def test_ranks_and_one_process_go_on_from_each_other(pair, facts, place, strategy):
    of_single, _ = resumed(None, ALONE, place / "single")
    ranks = pair.run("resumed", config=CONFIGS[strategy], path=place / "single")
    for found, notes in ranks:
        assert_same(without_chance(found), without_chance(of_single, next_batch=SAVED_AT // 2))
        assert notes == [f"the checkpoint is of one process, this run has 2 ranks: {AFRESH}"]
    (first, _), (second, _) = ranks
    assert not torch.equal(first["rng"], second["rng"])
    found, notes = resumed(None, ALONE, place / strategy)
    assert_same(without_chance(found), without_chance(facts[strategy][0]["saved"], next_batch=2 * SAVED_AT))
    assert notes == [f"the checkpoint is of 2 ranks, this run has one process: {AFRESH}"]


@pytest.mark.parametrize("full", [0, 1])
def test_no_room_on_one_rank_is_none_on_all(pair, tmp_path, full):
    error = (errno.EFBIG, os.strerror(errno.EFBIG), str(tmp_path / "checkpoints/last"))
    config = composed(*TRAINING, *STRATEGIES["autocast"], "trainer.steps=1")
    assert pair.run("save_without_room", config=config, place=tmp_path, full=full) == [[error, error]] * 2
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["last", "previous"]
    assert find_checkpoint(tmp_path).note is None


@pytest.mark.usefixtures("facts")
def test_the_place_in_the_data_is_that_of_all_ranks_together(place):
    found = find_checkpoint(place / "ddp")
    assert [found.next_batch(*now) for now in ((4, 1), (8, 1), (2, 4))] == [2 * SAVED_AT, SAVED_AT, SAVED_AT]
    with pytest.raises(CheckpointError) as error:
        found.next_batch(5, 2)
    assert str(error.value) == (
        f"checkpoint {found.path} has seen 64 samples (8 micro-batches of 4 on 2 ranks), not a whole number of "
        "micro-batches of 5 on 2 ranks; change data.batch_size or parallel.num_processes"
    )


@pytest.mark.usefixtures("facts")
def test_torch_itself_reads_each_ranks_part(place):
    def parts(strategy):
        files = [place / strategy / f"checkpoints/last/rank-{rank}.pt" for rank in (0, 1)]
        return [torch.load(file, weights_only=True) for file in files]

    first, second = parts("fsdp2")
    assert first["world_size"] == second["world_size"] == 2
    assert first["sharded"] == second["sharded"]
    assert first["sharded"]["model.first.0.weight"] == (0, 15)
    assert first["sharded"]["optimizers.body.first.0.weight.exp_avg"] == (0, 15)
    assert [tuple(part["model"]["first.0.weight"].shape) for part in (first, second)] == [(8, 64), (7, 64)]
    first, second = parts("ddp")
    assert first["sharded"] == second["sharded"] == {}
    devices = {part["model"]["first.0.weight"].device.type for part in (first, second)}
    assert devices == {"cpu", "meta"}, "what all ranks have is written once"
    assert not second["model"]["first.1.running_mean"].is_meta, "it is not the first rank's"


def test_a_damaged_file_of_any_rank_is_refused(saved):
    for file in sorted(saved.iterdir()):
        content = file.read_bytes()
        damaged = [content[: int(share * len(content))] for share in (0, 0.5, 0.99)] + [pickle.dumps({"step": 7})]
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


@pytest.mark.usefixtures("facts")
def test_ranks_must_share_a_file_system(place, tmp_path):
    def gather(item):  # the first rank names a directory that is not here
        return [(tmp_path / "elsewhere", None) if isinstance(item, tuple) else item, item]

    second = SimpleNamespace(rank=1, world_size=2, gather=gather)
    with pytest.raises(RuntimeError, match=r"rank 0 made for a .* must share the file system of output_dir"):
        save_together(find_checkpoint(place / "single").checkpoint, tmp_path, second)


@pytest.mark.usefixtures("facts")
def test_a_checkpoint_of_another_model_names_a_difference(place):
    found = find_checkpoint(place / "fsdp2")
    require_same_model(found.checkpoint, found.path, Training(ALONE).built.model, "net")
    with pytest.raises(CheckpointError, match=r"another model \(model\): bias has shape absent there"):
        require_same_model(found.checkpoint, found.path, torch.nn.Linear(2, 2), "other")
    assert found.restored(Training(ALONE).built.model, 4, SINGLE, CPU)[0].step == SAVED_AT
