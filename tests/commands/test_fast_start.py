"""The process that trains imports what a training needs and no more, and never looks for garbage among it."""

import json

import pytest

NOTING = """
import gc, json, sys
from pathlib import Path
from torch import nn

imported_frozen = gc.get_freeze_count()

class Net(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)

    def forward(self, inputs):
        if self.training and inputs.device.type != "meta":
            slow = [name for name in ("wandb", "scipy", "sklearn", "plotly", "pandas") if name in sys.modules]
            facts = {"slow": slow, "collects": gc.isenabled(), "frozen": gc.get_freeze_count()}
            Path("noted.json").write_text(json.dumps(facts | {"imported_frozen": imported_frozen}))
        return super().forward(inputs)
"""
RUN = (
    "model=custom",
    "model._target_=noting.Net",
    "data=synthetic",
    "data.in_features=8",
    "data.out_features=8",
    "data.batch_size=4",
    "trainer.steps=4",
    "tracking.mode=offline",
)


@pytest.fixture
def noted(start, tmp_path):
    """What the process of a training has noted of itself."""
    (tmp_path / "noting.py").write_text(NOTING, encoding="utf-8")

    def noted(*arguments):
        ended = start(*arguments, *RUN, PYTHONPATH=str(tmp_path)).finish()
        assert ended.code == 0, ended.err
        return json.loads((tmp_path / "noted.json").read_text())

    return noted


@pytest.mark.parametrize("arguments", [(), ("-m", "seed=0")], ids=["alone", "of a sweep"])
def test_a_training_has_imported_neither_wandb_nor_statistics(arguments, noted):
    assert noted(*arguments)["slow"] == []


def test_a_training_collects_its_own_garbage_alone(noted):
    facts = noted()
    assert facts["collects"]
    assert facts["frozen"] > 100_000, "objects of imported modules"


def test_a_run_of_a_sweep_begins_with_everything_imported(noted):
    assert noted("-m", "seed=0")["imported_frozen"] > 100_000
