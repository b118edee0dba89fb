"""Runs with trainer.compile: what they compiled, and what stands in the record."""

import pytest
from command_line import MLP, all_runs, only_run

COMPILED = (*MLP, "trainer.steps=6", "device=cpu", "precision=amp_bf16")


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of what torch imports to compile
def test_compiled_runs_of_a_sweep_are_recorded_as_such(train, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    ended = train("-m", "trainer.compile=true", *COMPILED, "seed=0,1", "predict.with_runs=true")
    assert ended.code == 0, ended.err
    first, second = sorted((run.record for run in all_runs()), key=lambda record: record.identity.seed)
    assert (first.status, second.status) == ("completed", "completed"), ended.err
    assert second.compilation.seconds < first.compilation.seconds
    assert [run.contradictions for run in all_runs()] == [(), ()]
    for record in (first, second):
        assert record.proof.traced == "compiled"
        assert record.prediction.peak_bytes > 0  # of the eager step, so that there is nothing to hold it against
        assert (record.prediction.measured_bytes, record.prediction.error_pct) == (None, None)
        assert record.summary["memory/peak_allocated_gib"] * 2**30 == record.memory.peak_bytes


def test_a_machine_without_a_compiler_is_told(train, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    ended = train("-m", "trainer.compile=true", *COMPILED, "seed=0")
    assert ended.code == 0
    record = only_run().record
    assert record.status == "unsupported"
    assert record.error.startswith("trainer.compile=true needs a C++ compiler, and there is none")
    assert "Traceback" not in ended.out + ended.err
