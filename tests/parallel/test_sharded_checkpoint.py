"""Several ranks write a checkpoint together, and any number of them goes on from it."""

import errno
import io
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from saved_trainings import CPU, SAVED_AT, STEPS, Training

from ampsweep.parallel.base import SINGLE
from ampsweep.record.digests import sealed
from ampsweep.training.checkpoint import CheckpointError, require_same_model
from ampsweep.training.checkpoint_manifest import stored_file
from ampsweep.training.found_checkpoint import find_checkpoint, set_aside
from ampsweep.training.sharded_checkpoint import require_shared

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


def test_names_are_the_models_own(place):
    for strategy in STRATEGIES:
        found = find_checkpoint(place / strategy)
        assert found.manifest is not None
        assert {name for name in found.manifest.tensors if name.startswith("model.inner.0")} == {
            "model.inner.0.weight",
            "model.inner.0.bias",
        }
        assert "optimizers.body.inner.0.weight.exp_avg" in found.manifest.tensors
        assert found.manifest.aliases == {"model.head.weight": "model.embedding.weight"}


def test_each_rank_writes_its_share(place):
    for strategy in STRATEGIES:
        files = find_checkpoint(place / strategy).manifest.files
        first, second = (files[f"__{rank}_0.distcp"].num_bytes for rank in (0, 1))
        assert 0.3 < first / (first + second) < 0.7


def test_torchs_own_tools_read_it(place, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(place / "fsdp2/checkpoints/last", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert whole["model.single.weight"].shape == (1, 6)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file_of_any_rank_is_refused(saved, share):
    for file in sorted(path for path in saved.iterdir()):
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])
        with pytest.raises(CheckpointError, match="cannot be read"):
            find_checkpoint(saved)
        file.write_bytes(content)
    find_checkpoint(saved)


def test_a_flipped_byte_anywhere_is_refused(saved):
    for file in sorted(path for path in saved.iterdir()):
        content = file.read_bytes()
        for position in range(0, len(content), max(1, len(content) // 20)):
            damaged = bytearray(content)
            damaged[position] ^= 0xFF
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="cannot be read"):
                find_checkpoint(saved)
        file.write_bytes(content)


@pytest.mark.parametrize("name", ["__1_0.distcp", "rank-1.pt", "state.pt"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(CheckpointError) as refused:
        find_checkpoint(saved)
    assert str(refused.value) == f"checkpoint {saved} cannot be read: {name} cannot be read: No such file or directory"


def test_an_unfinished_one_gives_way_to_the_one_before(saved):
    shutil.copytree(saved, saved.with_name("previous"))
    (saved / "manifest.json").unlink()
    found = find_checkpoint(saved.parents[1])
    assert found.path.name == "previous"
    assert found.note == (
        f"checkpoint {saved} cannot be read: it has no manifest.json; going on from previous, of step {SAVED_AT}"
    )


def saved_by_torch(content):
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def test_a_damaged_one_does_not_become_the_one_before(saved):
    run = saved.parents[1]
    for _ in range(2):
        shutil.copytree(saved, saved.with_name("previous"), dirs_exist_ok=True)
        (saved / "state.pt").unlink()
        set_aside(run)
        assert sorted(path.name for path in saved.parent.iterdir()) == ["last.damaged", "previous"]
        assert find_checkpoint(run).path.name == "previous"
        shutil.copytree(saved.with_name("previous"), saved)


def test_ranks_that_share_no_file_system_are_told_so(saved):
    files = find_checkpoint(saved).manifest.files
    require_shared(saved, files)
    (saved / "rank-1.pt").unlink()
    with pytest.raises(RuntimeError, match=r"rank-1\.pt, which another rank .* share the file system of output_dir"):
        require_shared(saved, files)


class Malicious:
    def __reduce__(self):
        return os.system, ("touch run_by_the_checkpoint",)


def sealed_again(saved, change=lambda manifest: None):
    """Write the manifest as somebody would who has put other files there."""
    manifest = json.loads((saved / "manifest.json").read_text())
    del manifest["digest"]
    for name in manifest["files"]:
        file = stored_file(saved / name)
        manifest["files"][name] = [file.num_bytes, file.blake2b]
    change(manifest)
    (saved / "manifest.json").write_text(sealed(json.dumps(manifest, indent=1) + "\n"))


def read_by_one(saved):
    found = find_checkpoint(saved)
    return found.restored(Training("single").model, 4, SINGLE, CPU)


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
    """Its digests are as they should be."""
    code = pickled(Malicious())
    state = (saved / "state.pt").read_bytes()
    (saved / ".metadata").write_bytes(code)
    sealed_again(saved)
    read_by_one(saved)  # nobody reads what is torch's own

    (saved / "state.pt").write_bytes(code)
    sealed_again(saved)
    with pytest.raises(CheckpointError, match="damaged or no checkpoint"):
        find_checkpoint(saved)

    (saved / "state.pt").write_bytes(state)
    (saved / "__0_0.distcp").write_bytes(code)

    def all_of_it(manifest):
        for _, _, chunks in manifest["tensors"].values():
            for chunk in chunks:
                chunk[2:] = ["__0_0.distcp", 0, len(code)]

    sealed_again(saved, all_of_it)
    with pytest.raises(Exception, match=r"Weights only load failed|weights_only"):
        read_by_one(saved)


def test_files_outside_of_it_are_none_of_its(saved):
    sealed_again(saved, lambda one: one["files"].update({"../last/state.pt": one["files"]["state.pt"]}))
    with pytest.raises(CheckpointError, match=r"\.\./last/state\.pt is no name of a file"):
        find_checkpoint(saved)


def test_a_checkpoint_of_another_model_names_a_difference(place):
    found = find_checkpoint(place / "fsdp2")
    require_same_model(found.checkpoint, found.path, Training("single").model, "net")
    with pytest.raises(CheckpointError, match=r"another model \(net\): bias has shape absent there"):
        require_same_model(found.checkpoint, found.path, torch.nn.Linear(2, 2), "other")
    assert found.restored(Training("single").model, 4, SINGLE, CPU)[0].step == SAVED_AT
