"""Without a W&B server a sweep file has the points that its agents would get."""

import itertools
import random
from pathlib import Path

import pytest
import yaml

from ampsweep.config.compose import compose_each
from ampsweep.config.errors import UserError
from ampsweep.config.sweep_file import draw, read_sweep

SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))


@pytest.fixture
def points(tmp_path):
    def points(text, *count):
        (tmp_path / "sweep.yaml").write_text(text)
        return read_sweep(tmp_path / "sweep.yaml").overrides((), *count)

    return points


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_grid_of_the_repository_has_its_points(path):
    """In the order of agents: https://docs.wandb.ai/guides/sweeps/sweep-config-keys/."""
    content = yaml.safe_load(path.read_text())
    if content["method"] == "bayes":
        with pytest.raises(UserError, match="method bayes: needs a W&B server"):
            read_sweep(path).overrides()
        return
    keys = [
        [f"{key}={value}" for value in parameter.get("values", [parameter.get("value")])]
        for key, parameter in content["parameters"].items()
    ]
    assert read_sweep(path).overrides() == list(itertools.product(*keys))


def test_points_compose_to_their_values(points):
    found = points("""
program: train.py
method: grid
parameters:
  model: {value: custom}
  model._target_: {value: "mine.Net"}
  optimizer: {parameters: {lr: {values: [0.1, 1.0e-3]}, fused: {value: false}}}
  trainer.max_grad_norm: {value: null}
  tracking.tags: {value: ["a b", c]}
  name: {value: "it's 5, or {6}"}
command: ["${env}", python, train.py, seed=7, "${args_no_hyphens}"]
""")
    composed = compose_each(found)
    assert len(composed.points) == 2
    for point, lr in zip(composed.points, (0.1, 1e-3), strict=True):
        config = point.config
        assert (config.optimizer["lr"], config.optimizer["fused"], config.trainer.max_grad_norm) == (lr, False, None)
        assert (config.name, config.tracking.tags, config.seed) == ("it's 5, or {6}", ["a b", "c"], 7)
        assert config.model["_target_"] == "mine.Net"


RANDOM = """
method: random
run_cap: 30
parameters:
  seed: {min: 0, max: 3}
  precision: {values: [fp32, amp_bf16]}
  optimizer.lr: {distribution: log_uniform_values, min: 0.001, max: 0.1}
"""


def test_a_random_sweep_has_the_same_points_each_time(points):
    found = points(RANDOM)
    assert len(found) == 30
    assert points(RANDOM) == points(RANDOM, 50) == found, "run_cap is the end"
    assert points(RANDOM, 5) == found[:5]
    seeds, modes, rates = ({point[number].partition("=")[2] for point in found} for number in range(3))
    assert seeds == {"0", "1", "2", "3"}
    assert modes == {"fp32", "amp_bf16"}
    assert all(0.001 <= float(rate) <= 0.1 for rate in rates)
    assert len(rates) == 30


DISTRIBUTIONS = (
    ({"min": 0, "max": 10}, 0, 10, 5),
    ({"min": 0.0, "max": 1.0}, 0, 1, 0.5),
    ({"distribution": "log_uniform_values", "min": 0.01, "max": 1}, 0.01, 1, 0.215),
    ({"values": [1, 3]}, 1, 3, 2),
    ({"value": 2}, 2, 2, 2),
)


def test_values_have_their_distribution():
    source = random.Random(0)
    for parameter, lowest, highest, mean in DISTRIBUTIONS:
        values = [draw("x", parameter, source) for _ in range(2000)]
        assert lowest <= min(values) <= max(values) <= highest
        assert sum(values) / len(values) == pytest.approx(mean, rel=0.1)


NO_SWEEPS = (
    *("a: [", "a: 1", "method: grid\nparameters: {seed: 1}", "method: grid\nparameters: {seed: {min: 0, max: 1}}"),
    *("method: random\nparameters: {seed: {value: 1}}", "method: magic\nparameters: {seed: {value: 1}}"),
    "method: random\nrun_cap: 1\nparameters: {x: {distribution: beta}}",
    "method: random\nrun_cap: 1\nparameters: {x: {values: [1, 2], probabilities: [1, 0]}}",
    "method: random\nrun_cap: 1\nparameters: {x: {min: 0, max: low}}",
)


def test_a_file_without_a_sweep_is_refused(points, tmp_path, golden):
    lines = []
    for text in NO_SWEEPS:
        with pytest.raises(UserError) as raised:
            points(text)
        lines.append(f"- `{'`, `'.join(text.splitlines())}`\n  {raised.value}")
    golden("no_sweeps.md", "\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"cannot be read: .*nowhere\.yaml"):
        read_sweep(tmp_path / "nowhere.yaml")
