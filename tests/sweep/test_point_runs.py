"""A sweep looks for the run of each point, however many runs it has."""

from dataclasses import replace

from ampsweep.config.compose import compose_one
from ampsweep.config.identity import config_hash
from ampsweep.records import RunRecord
from ampsweep.run.directories import finished_hashes
from ampsweep.run.request import new_record


def test_a_point_reads_its_own_record_only_wherever_and_however_it_is(tmp_path, monkeypatch):
    base, read, real = compose_one(["model=mlp_small", "trainer.steps=2"]), [], RunRecord.read
    monkeypatch.setattr(RunRecord, "read", lambda directory: read.append(directory) or real(directory))

    def write(seed, status="completed"):
        record = new_record(replace(base, seed=seed), device="cpu")
        record.status = status
        record.write(tmp_path / f"moved/anything-{seed}")

    def finished(number):
        hashes = [config_hash(replace(base, seed=seed)) for seed in range(number)]
        return [seed for seed, wanted in enumerate(hashes) if wanted in finished_hashes(tmp_path, mentioning=wanted)]

    for seed in range(30):
        (tmp_path / f"moved/anything-{seed}").mkdir(parents=True)  # as Hydra makes it, before the run has a record
        write(seed, "interrupted" if seed == 0 else "completed")
    (tmp_path / "moved/anything-30").mkdir()
    assert finished(31) == [*range(1, 30)]
    assert len(read) == 30
    write(0)
    (tmp_path / "moved/anything-1/run.json").write_text("{")
    assert finished(3) == [0, 2], "a record that cannot be read is skipped"
