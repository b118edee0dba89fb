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
PLAN = ROOT / "sweeps/results/plan.yaml"
FILES = {path.stem: path for path in sorted((ROOT / "sweeps").rglob("*.yaml")) if path != PLAN}
NAMES = [name for name, path in FILES.items() if path.parent.name == "sweeps"]


def content(name):
    return yaml.safe_load(FILES[name].read_text())


def points(name):
    """Every combination, of intervals the ends, as `${args_no_hyphens}` writes it: `key=value`, as Python prints it."""
    choices = []
    for key, parameter in content(name)["parameters"].items():
        if "min" in parameter:
            assert content(name)["method"] != "grid", f"{key}: a grid takes a value or a list of values"
            values = [parameter["min"], parameter["max"]]
        else:
            assert set(parameter) in ({"value"}, {"values"})
            values = parameter["values"] if "values" in parameter else [parameter["value"]]
        assert len(set(map(str, values))) == len(values) > 0
        choices.append([f"{key}={value}" for value in values])
    return list(itertools.product(*choices))


def test_the_sweeps_are_there():
    assert {"fp32_vs_amp", "scaler_tuning", "memory_by_batch", "amp_fp16_search"} <= set(NAMES)


def test_a_search_that_has_no_end_of_its_own_has_a_cap():
    searches = [content(name) for name in NAMES if content(name)["method"] != "grid"]
    assert searches
    assert all(search["run_cap"] > 0 for search in searches)


def test_a_point_that_is_ended_early_was_evaluated_before():
    search = content("amp_fp16_search")
    evaluations = search["parameters"]["trainer.steps"]["value"] / search["parameters"]["trainer.eval_every"]["value"]
    assert search["metric"]["name"] == "val/loss"
    assert 0 < search["early_terminate"]["min_iter"] < evaluations


@pytest.mark.parametrize("name", NAMES)
def test_every_point_composes(name):
    found = points(name)
    seeds = {next((key for key in point if key.startswith("seed=")), None) for point in found}
    first_seed = next(key for key in found[0] if key.startswith("seed="))
    # Seeds after the first differ in nothing but the number: each is composed once.
    for point in [point for point in found if first_seed in point]:
        config = compose_one(agent_overrides(point))
        assert config.name == name
    for seed in seeds - {first_seed}:
        compose_one(agent_overrides([seed if key == first_seed else key for key in found[0]]))


@pytest.mark.parametrize("name", FILES)
def test_a_sweep_has_a_name_a_method_and_a_program_that_exists(name):
    sweep = content(name)
    assert sweep["name"] == name
    assert sweep["method"] in ("grid", "random", "bayes")
    assert (ROOT / sweep["program"]).is_file()


@pytest.mark.parametrize("name", FILES)
def test_the_agent_calls_the_program_with_overrides(name):
    assert content(name)["command"] == ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]


@pytest.mark.parametrize("name", FILES)
def test_the_metric_is_logged_and_improved_the_right_way(name):
    metric = content(name)["metric"]
    assert metric["name"] in METRICS
    better = {"minimize": "lower", "maximize": "higher"}[metric["goal"]]
    assert METRICS[metric["name"]].better == better


@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_varies_the_precision_or_its_settings(name):
    varied = [key for key, parameter in content(name)["parameters"].items() if "value" not in parameter]
    assert any(key.startswith("precision") for key in varied)


def test_a_seed_of_the_results_is_run_by_one_command():
    found = points_of(FILES["recipe"], ["seed=0"])
    assert len(found) == len(set(found)) == 5
    assert all("seed=0" in point for point in found)
