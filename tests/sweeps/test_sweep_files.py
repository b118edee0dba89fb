"""Every sweep file can be run: its points compose, as an agent gives them."""

import itertools
from pathlib import Path

import pytest
import yaml

from ampsweep.commands.sweep import points_of
from ampsweep.config.compose import compose_one
from ampsweep.metrics import METRICS
from ampsweep.tracking.wandb.agent import agent_overrides

ROOT = Path(__file__).parents[2]
FILES = [path for path in sorted((ROOT / "sweeps").rglob("*.yaml")) if path.name != "plan.yaml"]
SWEEPS = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
NAMES = [path.stem for path in FILES if path.parent.name == "sweeps"]


def points(sweep):
    """Every combination, of intervals the ends, as `${args_no_hyphens}` writes it: `key=value`, as Python prints it."""
    choices = []
    for key, parameter in sweep["parameters"].items():
        if "min" in parameter:
            assert sweep["method"] != "grid", f"{key}: a grid takes a value or a list of values"
            values = [parameter["min"], parameter["max"]]
        else:
            assert set(parameter) in ({"value"}, {"values"})
            values = parameter["values"] if "values" in parameter else [parameter["value"]]
        assert len(set(map(str, values))) == len(values) > 0
        choices.append([f"{key}={value}" for value in values])
    return list(itertools.product(*choices))


def test_a_sweep_file_is_one_that_wandb_and_its_agents_run():
    assert {"fp32_vs_amp", "scaler_tuning", "memory_by_batch", "amp_fp16_search"} <= set(NAMES)
    for name, sweep in SWEEPS.items():
        assert sweep["name"] == name
        assert sweep["method"] in ("grid", "random", "bayes")
        assert (ROOT / sweep["program"]).is_file()
        assert sweep["command"] == ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]
        better = {"minimize": "lower", "maximize": "higher"}[sweep["metric"]["goal"]]
        assert METRICS[sweep["metric"]["name"]].better == better
        assert sweep["method"] == "grid" or sweep["run_cap"] > 0, "a search without an end of its own has a cap"
    search = SWEEPS["amp_fp16_search"]
    evaluations = search["parameters"]["trainer.steps"]["value"] / search["parameters"]["trainer.eval_every"]["value"]
    assert search["metric"]["name"] == "val/loss"
    assert 0 < search["early_terminate"]["min_iter"] < evaluations, "a point that is ended early was evaluated before"


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.nightly)])
def test_points_compose_and_the_precision_varies(every):
    for name in NAMES:
        varied = [key for key, parameter in SWEEPS[name]["parameters"].items() if "value" not in parameter]
        assert any(key.startswith("precision") for key in varied)
        found = points(SWEEPS[name])
        first_seed = next(key for key in found[0] if key.startswith("seed="))
        for point in [point for point in found if first_seed in point][
            ::every
        ]:  # the other seeds differ in the number only
            assert compose_one(agent_overrides(point)).name == name
    of_a_seed = points_of(FILES[[path.stem for path in FILES].index("recipe")], ["seed=0"])
    assert len(of_a_seed) == len(set(of_a_seed)) == 5
    assert all("seed=0" in point for point in of_a_seed)
