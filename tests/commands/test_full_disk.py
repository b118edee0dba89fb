"""A full disk, a directory that goes away, a lock that is no file: one sentence, and what can be kept is kept."""

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
    """Limits the size of every file that this process and its children write from now on."""
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
    assert only_run().record.status == "completed"
    assert not list((only_run().directory / "checkpoints").iterdir())


def test_a_file_of_a_run_without_room_is_one_sentence(train, no_room):
    for name, mode, said in (
        ("run.json", (), "error: fp32-mlp_small-s0-"),
        ("config.yaml", (), "error: "),
        ("config.yaml", ("-m", "seed=0,1"), "config.yaml: No space left on device; the sweep ends here"),
    ):
        no_room(name)
        ended = train(*mode, *RUN)
        assert ended.code == 1
        (line,) = ended.said
        assert said in line
        assert name in line
        assert "No space left on device" in line


def test_a_comparison_without_room_is_no_fault_of_the_runs(train, monkeypatch):
    def write_comparison(*_):
        raise OSError(28, os.strerror(28), "comparison.html")

    monkeypatch.setattr("ampsweep.report.comparison_document.write_comparison", write_comparison)
    ended = train("-m", *RUN, "seed=0")
    assert ended.code == 0
    assert ended.said == ["the comparison's files are not written: comparison.html: No space left on device"]
    assert "completed" in ended.out
    assert "comparison.html" not in ended.out


@pytest.mark.nightly
def test_a_run_whose_directory_is_deleted_has_a_record_all_the_same(train, tmp_path):
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


def test_a_stdout_that_nobody_reads_ends_nothing():
    prints = "guard_streams(); print('a' * 10**6); print('b', flush=True); open('went_on', 'w').close()"
    code = f"from ampsweep.standard_streams import guard_streams; {prints}"
    for stdout in ("| head -c 1", ">&-", ">&- 2>&- <&-"):
        command = ["bash", "-o", "pipefail", "-c", f'"{sys.executable}" -c "{code}" {stdout}']
        ended = subprocess.run(command, capture_output=True, check=False)
        assert (ended.returncode, ended.stderr, Path("went_on").exists()) == (0, b"", True)
        Path("went_on").unlink()


def test_a_device_lock_that_is_no_file_is_refused(train, tmp_path, monkeypatch):
    for kind, why in (("folder", "Is a directory"), ("link", "is a link")):
        locks = tmp_path / kind
        locks.mkdir()
        monkeypatch.setenv("TMPDIR", str(locks))
        monkeypatch.setattr("ampsweep.launch.device_lock.tempfile.gettempdir", lambda locks=locks: str(locks))
        lock = locks / f"ampsweep-{os.getuid()}-cpu.lock"
        if kind == "folder":
            lock.mkdir()
        else:
            lock.symlink_to(tmp_path / "elsewhere")
        ended = train(*RUN)
        assert ended.code == 2
        assert ended.said == [f"error: the lock of device cpu cannot be taken: {lock}: {why}"]
    assert not Path("outputs").exists()
    assert not (tmp_path / "elsewhere").exists()
