"""Every sweep file can be run: its points compose, as an agent gives them."""

import itertools
from pathlib import Path

import pytest
import torch
import yaml

from ampsweep.analysis.step_limits import MIN_PEAK_BYTES
from ampsweep.config.compose import compose_one
from ampsweep.config.sweep_file import read_sweep
from ampsweep.metrics import METRICS
from ampsweep.predict.run_prediction import predict_run
from ampsweep.tracking.wandb.agent import agent_overrides

ROOT = Path(__file__).parents[2]
FILES = [path for path in sorted((ROOT / "sweeps").rglob("*.yaml")) if path.name != "plan.yaml"]
SWEEPS = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
NAMES = [path.stem for path in FILES if path.parent.name == "sweeps"]


def points(sweep):
    """Every combination, of intervals the ends, as `${args_no_hyphens}` writes it: `key=value`, as Python prints it."""
    choices = []
    for key, parameter in sweep["parameters"].items():
        values = parameter.get("values") or [parameter[name] for name in ("value", "min", "max") if name in parameter]
        assert len(set(map(str, values))) == len(values) > 0
        choices.append([f"{key}={value}" for value in values])
    return list(itertools.product(*choices))


def test_a_sweep_file_is_one_that_wandb_and_its_agents_run():
    for name, sweep in SWEEPS.items():
        assert (sweep["name"], sweep["method"] in ("grid", "random", "bayes")) == (name, True)
        assert (ROOT / sweep["program"]).is_file()
        assert sweep["command"] == ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]
        better = {"minimize": "lower", "maximize": "higher"}[sweep["metric"]["goal"]]
        assert METRICS[sweep["metric"]["name"]].better == better
        if sweep["method"] == "grid":
            assert all(parameter.keys() <= {"value", "values"} for parameter in sweep["parameters"].values())
        else:
            assert sweep["run_cap"] > 0, "a search has no end of its own"
    search = SWEEPS["precision_search"]
    evaluations = search["parameters"]["trainer.steps"]["value"] / search["parameters"]["trainer.eval_every"]["value"]
    assert {"precision", "optimizer.lr", "data.batch_size"} <= search["parameters"].keys()
    assert search["metric"]["name"] == "val/loss"
    assert 0 < search["early_terminate"]["min_iter"] < evaluations, "a point that is ended early was evaluated before"


def test_a_shipped_comparison_has_the_size_and_the_seeds_to_prove_something():
    smallest = {name: agent_overrides(points(SWEEPS[name])[0]) for name in NAMES}
    for name in ("digits", "gan", "gradient_penalty", "two_optimizers", "wgan_gp"):
        smallest[name] = [f"experiment={name}", "hydra.mode=RUN", "precision=fp32"]
    for name, overrides in smallest.items():
        found = predict_run(compose_one([*overrides, "device=cpu"]), torch.device("cpu"))
        assert (found.peak_bytes or 0) > MIN_PEAK_BYTES, (name, found)
        if name in NAMES and SWEEPS[name]["method"] == "grid":
            assert len(SWEEPS[name]["parameters"]["seed"]["values"]) >= 3


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.nightly)])
def test_points_compose_and_the_precision_varies(every):
    for name in NAMES:
        varied = [key for key, parameter in SWEEPS[name]["parameters"].items() if "value" not in parameter]
        assert any(key.startswith("precision") for key in varied)
        found = points(SWEEPS[name])
        first_seed = next(key for key in found[0] if key.startswith("seed="))
        of_a_seed = [point for point in found if first_seed in point]  # the other seeds differ in the number only
        assert {compose_one(agent_overrides(point)).name for point in of_a_seed[::every]} == {name}
    of_a_seed = read_sweep(next(path for path in FILES if path.stem == "recipe")).overrides(["seed=0"])
    assert [len(of_a_seed), *("seed=0" in point for point in of_a_seed)] == [5] + [True] * 5
