"""A checkpoint loses nothing in a crash and refuses what is not one."""

import io
import os
import pickle
import random
import stat
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from devices import needs_cuda
from torch import nn

from ampsweep.record import write_atomically
from ampsweep.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    require_same_model,
    restore_rng_state,
    rng_state,
    save_checkpoint,
)
from ampsweep.training.found_checkpoint import find_checkpoint

CPU = torch.device("cpu")
NET = nn.Linear(3, 2)
CHECKPOINT = Checkpoint(
    step=7,
    next_batch=14,
    batch_size=4,
    applied_steps=6,
    config_hash="0123",
    model_name="my_net",
    arm="amp_fp16",
    model=NET.state_dict(),
    optimizers={
        "optimizer": {
            "class": "SGD",
            "state": torch.optim.SGD(NET.parameters(), lr=0.1).state_dict(),
            "parameters": ["weight", "bias"],
        }
    },
    scaler={"scale": 2.0, "_growth_tracker": 3},
    scale_monitor={"num_observed": 7, "skipped_steps": 1, "growth_tracker": 3},
    rng=rng_state(CPU),
    observed={},
)


@pytest.fixture
def saved(tmp_path):
    return save_checkpoint(CHECKPOINT, tmp_path)


def assert_same(one, other):
    """The same to the last bit: pickled alike."""
    assert saved_by_torch(asdict(one)) == saved_by_torch(asdict(other))


def test_what_is_written_is_read_again(saved):
    assert saved.name == "last.pt"
    assert_same(load_checkpoint(saved), CHECKPOINT)


def test_torch_itself_reads_it_without_running_any_code(saved):
    assert torch.load(saved, weights_only=True)["step"] == 7


def test_the_one_before_is_kept(tmp_path, saved):
    for step in (8, 9):
        save_checkpoint(replace(CHECKPOINT, step=step), tmp_path)
    assert load_checkpoint(saved).step == 9
    assert load_checkpoint(saved.with_name("previous.pt")).step == 8
    assert sorted(path.name for path in saved.parent.iterdir()) == ["last.pt", "previous.pt"]


def test_a_write_that_fails_midway_changes_nothing(tmp_path, saved):
    before = saved.read_bytes()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        save_checkpoint(replace(CHECKPOINT, rng={"not": lambda: "to be pickled"}), tmp_path)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["last.pt"]


def test_a_crash_between_the_two_renames_leaves_the_one_before(tmp_path, saved):
    saved.rename(saved.with_name("previous.pt"))
    assert find_checkpoint(tmp_path).checkpoint.step == 7


def test_a_run_directory_means_its_newest_checkpoint(tmp_path, saved):
    save_checkpoint(CHECKPOINT, tmp_path)
    assert find_checkpoint(tmp_path).path == saved
    assert find_checkpoint(saved.with_name("previous.pt")).path == saved.with_name("previous.pt")


@pytest.mark.parametrize("name", ["", "nosuch", "nosuch/last.pt"])
def test_where_there_is_none_is_said(name, tmp_path):
    path = tmp_path / name
    with pytest.raises(CheckpointError) as refused:
        find_checkpoint(path)
    assert str(refused.value) == f"{path} is neither a checkpoint nor a run directory with one"


def test_a_file_that_is_gone_is_said(tmp_path):
    with pytest.raises(CheckpointError, match=r"does not exist$"):
        load_checkpoint(tmp_path / "last.pt")


def assert_damaged(path):
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(path)
    assert str(refused.value) == f"checkpoint {path} cannot be read: it is damaged or no checkpoint"


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    assert_damaged(saved)


def test_a_flipped_byte_anywhere_is_refused_or_changes_nothing(saved):
    content = saved.read_bytes()
    num_refused = 0
    for position in range(0, len(content), len(content) // 300):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        saved.write_bytes(damaged)
        try:
            found = load_checkpoint(saved)
        except CheckpointError:
            num_refused += 1
        else:  # padding between the parts of the archive, which no one reads
            assert_same(found, CHECKPOINT)
    assert num_refused > 150


def zipped():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.txt", "text")
    return stream.getvalue()


def saved_by_torch(content, **options):
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


class Malicious:
    def __reduce__(self):
        return os.system, ("touch run_by_the_checkpoint",)


FOREIGN = {
    "text": b"some text\n",
    "a pickle": pickle.dumps({"step": 7}),
    "a zip file": zipped(),
    "weights in torch's old format": saved_by_torch({"step": 7}, _use_new_zipfile_serialization=False),
    "code": saved_by_torch(Malicious()),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_checkpoint_is_refused_and_never_run(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "foreign.pt"
    path.write_bytes(FOREIGN[kind])
    assert_damaged(path)
    assert [found.name for found in tmp_path.iterdir()] == ["foreign.pt"]


@pytest.mark.parametrize(
    "content",
    [
        NET.state_dict(),
        torch.ones(3),
        [7],
        asdict(CHECKPOINT) | {"format": 0},
        {key: value for key, value in asdict(CHECKPOINT).items() if key != "scaler"},
    ],
    ids=["weights alone", "a tensor", "a list", "another format", "a part is missing"],
)
def test_other_things_that_torch_saved_are_refused(content, tmp_path):
    path = tmp_path / "other.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(path)
    assert str(refused.value) == f"{path} is not a checkpoint of this version (format 4)"


SGD = CHECKPOINT.optimizers["optimizer"]


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (
            {"state": {"state": {}, "param_groups": [{"params": [0]}]}, "parameters": ["weight"]},
            "its optimizer has 1 parameters, the model 2 to train",
        ),
        ({"parameters": ["weight", "scale"]}, "its optimizer has the parameter scale, which the model does not train"),
    ],
)
def test_an_optimizer_of_other_parameters_is_refused(optimizer, why):
    saved = {"optimizers": {"optimizer": SGD | optimizer}}
    with pytest.raises(CheckpointError) as refused:
        require_same_model(replace(CHECKPOINT, **saved), Path("last.pt"), NET, "my_net")
    assert str(refused.value) == f"checkpoint last.pt does not fit my_net: {why}"


def test_a_damaged_newest_one_gives_way_to_the_one_before(tmp_path, saved):
    save_checkpoint(replace(CHECKPOINT, step=9), tmp_path)
    saved.write_bytes(saved.read_bytes()[:-100])
    found = find_checkpoint(tmp_path)
    assert (found.path.name, found.checkpoint.step) == ("previous.pt", 7)
    assert found.note == (
        f"checkpoint {saved} cannot be read: it is damaged or no checkpoint; going on from previous.pt, of step 7"
    )
    found.path.write_bytes(b"")
    with pytest.raises(CheckpointError) as refused:
        find_checkpoint(tmp_path)
    assert str(refused.value).count("it is damaged or no checkpoint") == 2


@pytest.mark.skipif(os.name == "nt", reason="modes of files are a POSIX matter")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_modes_of_files_follow_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        checkpoint = save_checkpoint(CHECKPOINT, tmp_path)
        write_atomically(tmp_path / "run.json", "{}")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (checkpoint, tmp_path / "run.json")] == [mode, mode]


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (nn.Linear(4, 2), "weight has shape (2, 3) there and (2, 4) in other_net"),
        (nn.Linear(3, 2, bias=False), "bias has shape (2,) there and absent in other_net"),
        (nn.Sequential(nn.Linear(3, 2)), "0.bias has shape absent there and (2,) in other_net"),
    ],
)
def test_a_checkpoint_of_another_model_names_a_difference(model, difference):
    path = Path("last.pt")
    with pytest.raises(CheckpointError) as refused:
        require_same_model(CHECKPOINT, path, model, "other_net")
    assert str(refused.value) == f"checkpoint last.pt is of another model (my_net): {difference}"


def test_device_and_dtype_make_no_other_model():
    require_same_model(CHECKPOINT, Path("last.pt"), nn.Linear(3, 2, device="meta", dtype=torch.bfloat16), "my_net")


def draw():
    torch_numbers = torch.rand(2).tolist() + torch.randn(2).tolist()
    return [random.random(), random.gauss(), *np.random.rand(2), np.random.randn(), *torch_numbers]


def test_all_generators_continue_where_they_were(saved):
    draw()  # an odd number of normal ones: the second of a pair is kept for later
    path = save_checkpoint(replace(CHECKPOINT, rng=rng_state(CPU)), saved.parents[1])
    expected = draw()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert draw() != expected
    restore_rng_state(load_checkpoint(path).rng, CPU)
    assert draw() == expected


@needs_cuda
def test_the_generator_of_a_gpu_continues_too():
    device = torch.device("cuda", 0)
    state = rng_state(device)
    expected = torch.rand(3, device=device)
    restore_rng_state(state, device)
    assert torch.equal(torch.rand(3, device=device), expected)
