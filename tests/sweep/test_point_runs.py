"""A sweep looks for the run of each point, however many runs it has."""

from dataclasses import replace

from ampsweep.commands.hydra_job import is_finished
from ampsweep.config.compose import compose_one
from ampsweep.record import RunRecord
from ampsweep.run.request import new_record

BASE = compose_one(["model=mlp_small", "trainer.steps=2"])


def write(place, seed, status="completed"):
    place.mkdir(parents=True, exist_ok=True)
    record = new_record(replace(BASE, seed=seed), device="cpu")
    record.status = status
    record.write(place)


def test_each_point_reads_its_own_record_only(tmp_path, monkeypatch):
    read, real = [], RunRecord.read
    monkeypatch.setattr(RunRecord, "read", lambda directory: read.append(directory) or real(directory))
    for seed in range(30):
        write(tmp_path / f"anything-{seed}", seed)
    assert all(is_finished(replace(BASE, seed=seed), tmp_path) for seed in range(30))
    assert not is_finished(replace(BASE, seed=99), tmp_path)
    assert len(read) == 30


def test_runs_are_found_wherever_they_are_and_as_they_end(tmp_path):
    def finished():
        return [is_finished(replace(BASE, seed=seed), tmp_path) for seed in range(3)]

    write(tmp_path / "a", 0, "interrupted")
    (tmp_path / "b").mkdir()  # as Hydra makes it, before the run has a record
    assert finished() == [False, False, False]
    write(tmp_path / "a", 0)
    write(tmp_path / "moved" / "c", 2)
    assert finished() == [True, False, True]
    (tmp_path / "a" / "run.json").write_text("{")
    assert finished() == [False, False, True], "a record that cannot be read is skipped"
