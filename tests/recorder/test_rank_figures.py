"""A training on several ranks has the fullest rank's memory and the slowest rank's time."""

from types import SimpleNamespace

from identities import identity

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.recorder.rank_figures import add_rank_figures
from ampsweep.records import RunRecord
from ampsweep.records.sections import MemoryUse, RankFigures


def record_of(peak_bytes, step_ms):
    record = RunRecord(
        run_id="1", arm="fp32", pair_key="p", config_hash="h", identity=identity(world_size=2), config={}
    )
    record.memory = MemoryUse(peak_bytes=peak_bytes, peak={"parameters": peak_bytes})
    record.summary = {"memory/peak_allocated_gib": peak_bytes / 2**30, "perf/step_ms": step_ms}
    return record


def test_the_record_has_the_fullest_and_the_slowest_rank():
    own, other = record_of(2**30, 20.0), record_of(3 * 2**30, 10.0)
    other.ranks = [RankFigures(rank=1, host="b", pid=2, device="cpu", peak_bytes=3 * 2**30, step_ms=10.0)]
    ranks = SimpleNamespace(world_size=2, rank=0, gather=lambda mine: [mine, other], reduced_bytes=40 * 2**20)
    add_rank_figures(own, PRECISION_MODES["fp32"], ranks, num_steps=10)
    assert own.memory.peak_bytes == 3 * 2**30
    assert own.summary["memory/peak_allocated_gib"] == 3.0
    assert own.summary["perf/step_ms"] == 20.0
    assert own.summary["perf/reduced_mib"] == 4.0
    assert [rank.rank for rank in own.ranks] == [0, 1]
