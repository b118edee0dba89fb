"""A checkpoint loses nothing in a crash, and other files are refused."""

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
from devices import CPU_AND_CUDA
from torch import nn

from ampsweep.records import write_atomically
from ampsweep.training import checkpoint as module
from ampsweep.training.checkpoint import CheckpointError, load_checkpoint, rng_state, save_checkpoint
from ampsweep.training.found_checkpoint import find_checkpoint

NET = nn.Linear(3, 2)
STATE = torch.optim.SGD(NET.parameters(), lr=0.1).state_dict()
SGD = {"class": "SGD", "state": STATE, "parameters": ["weight", "bias"]}
CHECKPOINT = module.Checkpoint(
    step=7, next_batch=14, batch_size=4, applied_steps=6, config_hash="0123", model_name="my_net", arm="amp_fp16",
    model=NET.state_dict(), optimizers={"optimizer": SGD}, scaler={"scale": 2.0, "_growth_tracker": 3}, observed={},
    scale_monitor={"num_observed": 7, "skipped_steps": 1, "growth_tracker": 3}, rng=rng_state(torch.device("cpu")),
)  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    return save_checkpoint(CHECKPOINT, tmp_path)


def refusal(call, *arguments):
    with pytest.raises(CheckpointError) as refused:
        call(*arguments)
    return str(refused.value)


def damaged(path):
    return f"checkpoint {path} cannot be read: it is damaged or no checkpoint"


def torch_saved(content, **options):
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def is_same(checkpoint):
    """The same to the last bit: pickled alike."""
    return torch_saved(asdict(checkpoint)) == torch_saved(asdict(CHECKPOINT))


def test_a_checkpoint_is_read_as_it_was_written(tmp_path, saved):
    assert saved.name == "last.pt"
    assert is_same(load_checkpoint(saved))
    assert torch.load(saved, weights_only=True)["step"] == 7, "torch reads it without running any code"
    for step in (8, 9):
        save_checkpoint(replace(CHECKPOINT, step=step), tmp_path)
    previous = saved.with_name("previous.pt")
    assert (load_checkpoint(saved).step, load_checkpoint(previous).step) == (9, 8)
    assert sorted(path.name for path in saved.parent.iterdir()) == ["last.pt", "previous.pt"]
    assert (find_checkpoint(tmp_path).path, find_checkpoint(previous).path) == (saved, previous)
    with pytest.raises((pickle.PicklingError, AttributeError)):  # midway, which changes nothing
        save_checkpoint(replace(CHECKPOINT, rng={"not": lambda: "to be pickled"}), tmp_path)
    assert (load_checkpoint(saved).step, load_checkpoint(previous).step, len([*saved.parent.iterdir()])) == (9, 8, 2)
    saved.unlink()  # as a crash between the two renames leaves it
    assert find_checkpoint(tmp_path).checkpoint.step == 8


def test_a_path_without_a_checkpoint_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nosuch", tmp_path / "nosuch/last.pt"):
        assert refusal(find_checkpoint, path) == f"{path} is neither a checkpoint nor a run directory with one"
    assert refusal(load_checkpoint, tmp_path / "last.pt").endswith(" does not exist")


def test_damage_anywhere_is_refused_or_changes_nothing(saved):
    content, num_refused = saved.read_bytes(), 0
    for share in (0, 0.01, 0.5, 0.99):
        saved.write_bytes(content[: int(share * len(content))])
        assert refusal(load_checkpoint, saved) == damaged(saved)
    for position in range(0, len(content), len(content) // 150):
        saved.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        try:
            assert is_same(load_checkpoint(saved)), "only padding between the members of the archive was changed"
        except CheckpointError:
            num_refused += 1
    assert num_refused > 75


class Malicious:
    def __reduce__(self):
        return os.system, ("touch run_by_the_checkpoint",)


def test_other_files_are_refused_and_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "foreign.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")
    old_format = torch_saved({"step": 7}, _use_new_zipfile_serialization=False)
    for content in (path.read_bytes(), b"some text\n", pickle.dumps({"step": 7}), old_format, torch_saved(Malicious())):
        path.write_bytes(content)
        assert refusal(load_checkpoint, path) == damaged(path)
        assert [found.name for found in tmp_path.iterdir()] == ["foreign.pt"]
    without_scaler = {key: value for key, value in asdict(CHECKPOINT).items() if key != "scaler"}
    for content in (torch.ones(3), [7], asdict(CHECKPOINT) | {"format": 0}, without_scaler):
        torch.save(content, path)
        assert refusal(load_checkpoint, path) == f"{path} is not a checkpoint of this version (format 5)"


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, saved):
    save_checkpoint(replace(CHECKPOINT, step=9), tmp_path)
    saved.write_bytes(saved.read_bytes()[:-100])
    found = find_checkpoint(tmp_path)
    assert (found.path.name, found.checkpoint.step) == ("previous.pt", 7)
    assert found.note == f"{damaged(saved)}; going on from previous.pt, of step 7"
    found.path.write_bytes(b"")
    assert refusal(find_checkpoint, tmp_path).count("it is damaged or no checkpoint") == 2


@pytest.mark.skipif(os.name == "nt", reason="modes of files are a POSIX matter")
def test_modes_of_files_follow_the_umask(tmp_path):
    for umask, mode in ((0o022, 0o644), (0o077, 0o600)):
        before = os.umask(umask)
        try:
            checkpoint = save_checkpoint(CHECKPOINT, tmp_path)
            write_atomically(tmp_path / "run.json", "{}")
        finally:
            os.umask(before)
        assert [stat.S_IMODE(path.stat().st_mode) for path in (checkpoint, tmp_path / "run.json")] == [mode, mode]


ONE_GROUP = {"state": {"state": {}, "param_groups": [{"params": [0]}]}, "parameters": ["weight"]}


def test_a_checkpoint_that_does_not_fit_names_a_difference():
    of_another, unfit = "is of another model (my_net): ", "does not fit other: its optimizer has "
    unknown = {"parameters": ["weight", "scale"]}
    for model, optimizer, reason in (
        (nn.Linear(4, 2), {}, f"{of_another}weight has shape (2, 3) there and (2, 4) in other"),
        (nn.Linear(3, 2, bias=False), {}, f"{of_another}bias has shape (2,) there and absent in other"),
        (nn.Sequential(NET), {}, f"{of_another}0.bias has shape absent there and (2,) in other"),
        (NET, ONE_GROUP, f"{unfit}1 parameters, the model 2 to train"),
        (NET, unknown, f"{unfit}the parameter scale, which the model does not train"),
    ):
        checkpoint = replace(CHECKPOINT, optimizers={"optimizer": SGD | optimizer})
        text = refusal(module.require_same_model, checkpoint, Path("last.pt"), model, "other")
        assert text == f"checkpoint last.pt {reason}"
    other_dtype = nn.Linear(3, 2, device="meta", dtype=torch.bfloat16)
    module.require_same_model(CHECKPOINT, Path("last.pt"), other_dtype, "my_net")


def draw(device):
    on_device = torch.rand(2, device=device).tolist() + torch.randn(2, device=device).tolist()
    return [random.random(), random.gauss(), *np.random.rand(2), np.random.randn(), torch.rand(()).item(), *on_device]


@pytest.mark.parametrize("name", CPU_AND_CUDA)
def test_all_generators_continue_where_they_were(name, tmp_path):
    device = torch.device(name)
    draw(device)  # an odd number of normal ones: the second of a pair is kept for later
    path = save_checkpoint(replace(CHECKPOINT, rng=rng_state(device)), tmp_path)
    expected = draw(device)
    module.seed_everything(1)
    assert draw(device) != expected
    module.restore_rng_state(load_checkpoint(path).rng, device)
    assert draw(device) == expected
