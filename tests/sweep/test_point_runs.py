"""A sweep looks for the run of each point, however many runs it has."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ampsweep.commands.hydra_job import is_finished
from ampsweep.config.compose import compose_one
from ampsweep.config.schema import Config
from ampsweep.record import RunRecord
from ampsweep.run.request import new_record

BASE = compose_one(["model=mlp_small", "trainer.steps=2"])


def _config(seed: int) -> Config:
    return replace(BASE, seed=seed)


def _write(place: Path, seed: int, status: str = "completed") -> None:
    place.mkdir(parents=True, exist_ok=True)
    record = new_record(_config(seed), device="cpu")
    record.status = status
    record.write(place)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    read: list[Path] = []
    real: Callable[[Path], RunRecord] = RunRecord.read

    def counted(directory: Path) -> RunRecord:
        read.append(directory)
        return real(directory)

    monkeypatch.setattr(RunRecord, "read", counted)
    return read


def test_each_point_reads_its_own_record_only(tmp_path: Path, reads: list[Path]) -> None:
    for seed in range(30):
        _write(tmp_path / f"anything-{seed}", seed)
    assert all(is_finished(_config(seed), tmp_path) for seed in range(30))
    assert len(reads) == 30
    reads.clear()
    assert not is_finished(_config(99), tmp_path)
    assert reads == []


def test_runs_of_others_are_found_while_the_sweep_goes_on(tmp_path: Path) -> None:
    _write(tmp_path / "a", 0, "interrupted")
    (tmp_path / "b").mkdir()  # as Hydra makes it, before the run has a record
    assert not is_finished(_config(0), tmp_path)
    assert not is_finished(_config(1), tmp_path)
    _write(tmp_path / "a", 0)
    _write(tmp_path / "moved" / "c", 2)
    assert [is_finished(_config(seed), tmp_path) for seed in range(3)] == [True, False, True]


def test_a_record_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    _write(tmp_path / "a", 0)
    (tmp_path / "a" / "run.json").write_text("{")
    assert not is_finished(_config(0), tmp_path)
