from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from shown_runs import history, like, on_gpu  # first: it makes the analysis's records importable
from synthetic_records import Entry, contaminated, disproved, failed, run, sweep

from ampsweep.analysis.comparison import Comparison, compare
from ampsweep.record import HISTORY_NAME, find_records, history_line


@pytest.fixture
def comparison() -> Comparison:
    """The four arms of the first experiment on a CPU: one faster, one unsupported, one cut short."""
    arms = [
        *sweep("fp32", [6.1, 6.0, 6.3], peak_mib=100.0, val_loss=[2.41, 2.43, 2.40], skipped=0, num_operators=430),
        *(failed("tf32", seed, "unsupported", "tf32 needs a CUDA device; this is a CPU.") for seed in range(3)),
        *sweep("amp_bf16", [4.0, 4.1, 4.05], peak_mib=70.0, val_loss=[2.412, 2.431, 2.404], skipped=0),
        *sweep(
            "amp_fp16",
            [71.0, 70.0, 73.0],
            peak_mib=110.0,
            skipped=[3, 0, 1],
            cut_short="trainer.max_seconds=20 passed after 17 of 40 steps",
        ),
        run("amp_fp16", 3, pair_key="older code", wandb={"url": "https://wandb.ai/team/ampsweep/runs/a1"}),
    ]
    return compare(arms, baseline="fp32", margin_pct=1.0)


@pytest.fixture
def gpu_runs() -> list[Entry]:
    """Two batch sizes on a GPU, three seeds, and a run out of memory at the larger."""
    entries = []
    for batch_size in (8, 16):
        for seed in range(3):
            noise = 1 + 0.01 * seed
            entries += [
                on_gpu("fp32", seed, batch_size=batch_size, step_ms=100.0 * noise),
                on_gpu("amp_bf16", seed, batch_size=batch_size, step_ms=50.0 / noise),
            ]
        entries += [on_gpu("amp_fp16", seed, batch_size=batch_size, step_ms=52.0 + seed) for seed in range(2)]
    lost = failed("amp_fp16", 2, "oom", "CUDA out of memory. Tried to allocate 2.00 GiB", **like(entries[-1]))
    return [*entries, lost]


Write = Callable[[Sequence[Entry]], list[Entry]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes records with a history each below `tmp_path`, and reads them back."""

    def write_runs(entries: Sequence[Entry]) -> list[Entry]:
        for directory, record in entries:
            there = tmp_path / directory.name
            there.mkdir()
            record.write(there)
            (there / HISTORY_NAME).write_text("".join(history_line(row) for row in history(record.arm, record)))
        return find_records(tmp_path).records

    return write_runs


@pytest.fixture
def broken_runs() -> list[Entry]:
    """A run of every kind of trouble, beside three good ones of the baseline."""
    return [
        *sweep("fp32", [10.0, 10.1, 10.2]),
        failed("tf32", 0, "unsupported", "tf32 needs a GPU"),
        failed("amp_fp16", 0, "diverged", "the scale collapsed to 1e-08 at step 12"),
        failed("amp_fp16", 1, "oom", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        failed("amp_fp16", 2, "failed", "RuntimeError: the disk is full"),
        contaminated("amp_bf16", 0),
        disproved("amp_bf16", 1),
        run("amp_bf16", 2, cut_short="trainer.max_seconds=20 passed after 17 of 40 steps"),
        run("amp_bf16", 7),
    ]
