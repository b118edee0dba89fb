"""A memory snapshot that a run left is sent to W&B as an artifact."""

from collections.abc import Callable
from pathlib import Path

import pytest
from wandb_file import WandbFile

from ampsweep.config.schema import TrackingConfig
from ampsweep.record import SNAPSHOT_NAME, RunRecord
from ampsweep.tracking.factory import make_trackers


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_snapshot_becomes_an_artifact(
    has_snapshot: bool, record: RunRecord, tmp_path: Path, read_wandb: Callable[[Path], WandbFile]
) -> None:
    trackers = make_trackers(TrackingConfig(mode="offline"), None, print)
    trackers.start(record, tmp_path, resume_after=None)
    if has_snapshot:
        (tmp_path / SNAPSHOT_NAME).write_bytes(b"recorded")
    trackers.finish(record)
    directory = tmp_path / record.wandb.directory
    assert ("artifact" in read_wandb(directory).kinds) == has_snapshot
    (file,) = directory.glob("*.wandb")
    assert (b"memory-snapshot-run0123" in file.read_bytes()) == has_snapshot
    assert (str(tmp_path / SNAPSHOT_NAME).encode() in file.read_bytes()) == has_snapshot
    assert record.wandb.error is None
