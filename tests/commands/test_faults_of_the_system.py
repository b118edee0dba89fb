"""A disk without room, a directory that goes away, a lock that is none: one sentence, and what can be kept is kept."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import MLP, only_run

from ampsweep.record import files, find_records

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are a POSIX matter")
RUN = (*MLP, "trainer.steps=6", "device=cpu")


@pytest.fixture
def small_files():
    """Limits the size of every file that this process writes from now on; its children, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def no_room(monkeypatch):
    """Makes files of some names fail as on a full disk."""
    replacing = files.replacing

    def refuse(*names):
        def refused(path, **more):
            if path.name in names:
                raise OSError(28, os.strerror(28), str(path))
            return replacing(path, **more)

        monkeypatch.setattr(files, "replacing", refused)

    return refuse


def test_a_checkpoint_without_room_stops_no_training(train, small_files):
    small_files(200_000)
    ended = train(*RUN, "trainer.checkpoint_every=2")
    assert ended.code == 0
    (said,) = ended.said
    assert said.startswith("no room for checkpoints, the training goes on without: ")
    assert said.endswith("checkpoints/last.pt: File too large")
    record = only_run().record
    assert record.status == "completed"
    assert not list((only_run().directory / "checkpoints").iterdir())


def test_a_record_without_room_is_one_sentence(train, no_room):
    no_room("run.json")
    ended = train(*RUN)
    assert ended.code == 1
    (said,) = ended.said
    assert said.startswith("error: fp32-mlp_small-s0-")
    assert "run.json" in said
    assert "No space left on device" in said


def test_hydras_files_without_room_are_one_sentence(train, no_room):
    no_room("config.yaml")
    ended = train(*RUN)
    assert ended.code == 1
    (said,) = ended.said
    assert "config.yaml" in said


def test_a_sweep_without_room_ends_with_a_sentence(train, no_room):
    no_room("config.yaml")
    ended = train("-m", *RUN, "seed=0,1")
    assert ended.code == 1
    (said,) = ended.said
    assert "config.yaml: No space left on device; the sweep ends here" in said


def test_a_comparison_without_room_is_no_fault_of_the_runs(train, monkeypatch):
    def write_comparison(*_):
        raise OSError(28, os.strerror(28), "comparison.html")

    monkeypatch.setattr("ampsweep.report.comparison_document.write_comparison", write_comparison)
    ended = train("-m", *RUN, "seed=0")
    assert ended.code == 0
    assert ended.said == ["the comparison's files are not written: comparison.html: No space left on device"]
    assert "completed" in ended.out
    assert "comparison.html" not in ended.out


def test_a_deleted_run_has_a_record_all_the_same(train, tmp_path):
    deletes = ("model=custom", "data=digits", "model._target_=own_models.Broken", "+model.what=deletes_its_directory")
    same = ("trainer.steps=6", "tracking=disabled", "predict.with_runs=false", "device=cpu")
    ended = train("-m", *deletes, *same, "seed=0")
    assert ended.code == 1
    ((_, record),) = find_records(tmp_path / "outputs").records
    assert (record.status, "Traceback" in ended.err) == ("failed", False)
    shutil.rmtree(tmp_path / "outputs")
    alone = train(*deletes, *same)
    assert alone.code == 1
    (said,) = alone.said
    assert "No such file or directory" in said


@pytest.mark.parametrize("stdout", ["| head -c 1", ">&-", ">&- 2>&- <&-"])
def test_a_stdout_that_nobody_reads_ends_nothing(stdout):
    prints = "guard_streams(); print('a' * 10**6); print('b', flush=True); open('went_on', 'w').close()"
    code = f"from ampsweep.standard_streams import guard_streams; {prints}"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"{sys.executable}" -c "{code}" {stdout}'], capture_output=True, check=False
    )
    assert (ended.returncode, ended.stderr, Path("went_on").exists()) == (0, b"", True)


def test_wandb_leaves_no_folders_and_needs_no_home(start, tmp_path):
    (tmp_path / "home").touch()
    (tmp_path / "tmp").mkdir()
    tracked = ("tracking=wandb", "tracking.mode=offline", "trainer.checkpoint_every=4", "tracking.checkpoints=true")
    ended = start(*RUN, *tracked, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path / "tmp")).finish()
    assert (ended.code, [line for line in ended.said if not line.startswith("W&B: offline")]) == (0, [])
    assert [path.suffix for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("torch")] == [".lock"]


def test_what_a_killed_process_left_is_removed(train):
    train("-m", *RUN, "seed=0", "trainer.checkpoint_every=2")
    hydra = only_run().directory / ".hydra"
    (hydra / ".config.yaml.01234567").touch()
    (hydra.parent / "run.json").unlink()
    train("-m", *RUN, "seed=0", f"into={hydra.parents[1]}")
    assert {path.name for path in hydra.iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_lock_that_is_no_file_is_refused(kind, train, tmp_path, monkeypatch):
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setenv("TMPDIR", str(locks))
    monkeypatch.setattr("ampsweep.launch.device_lock.tempfile.gettempdir", lambda: str(locks))
    lock = locks / f"ampsweep-{os.getuid()}-cpu.lock"
    if kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(tmp_path / "elsewhere")
    ended = train(*RUN)
    assert ended.code == 2
    (said,) = ended.said
    why = "Is a directory" if kind == "folder" else "is a link"
    assert said == f"error: the lock of device cpu cannot be taken: {lock}: {why}"
    assert not Path("outputs").exists()
    assert not (tmp_path / "elsewhere").exists()
