import sys
from pathlib import Path

import pytest

# The records with a known truth that the analysis is tested on.
sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_records import failed, run, sweep

from ampsweep.analysis import Comparison, compare


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
