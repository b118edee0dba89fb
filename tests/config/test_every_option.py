"""Whatever lies in `conf/` composes; the options are read from the folder, so a new file is covered."""

from functools import cache

import pytest
from omegaconf import OmegaConf

from ampsweep.config.compose import compose_one, compose_points, conf_dir
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import Config

PLACEHOLDERS = {"_target_": "mine.Part", "path": "tokens.bin", "batch_size": 4, "num_classes": 3}
"""Values for what an option leaves to the user (`???`)."""


def options(group):
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def groups():
    return sorted(
        path.name for path in conf_dir().iterdir() if path.is_dir() and path.name not in ("hydra", "experiment")
    )


def chosen(group, option):
    """The overrides that choose an option and give it what it asks for."""
    content = OmegaConf.to_container(OmegaConf.load(conf_dir() / group / f"{option}.yaml"))
    asked = [key for key, value in content.items() if value == "???"]
    return [f"{group}={option}", *(f"{group}.{key}={PLACEHOLDERS[key]}" for key in asked)]


def test_every_group_of_the_folder_is_a_part_of_the_config():
    assert set(groups()) <= set(Config.__dataclass_fields__)


@cache
def composed(*overrides):
    return compose_one(overrides)


@cache
def points_of(experiment):
    composed = compose_points([f"experiment={experiment}"], multirun=False)
    assert composed.multirun
    return composed.points


@pytest.mark.parametrize("option", options("model"))
def test_every_model_composes_with_its_default_data_and_task(option):
    config = composed(*chosen("model", option))
    assert config.model["name"] == option


@pytest.mark.parametrize("option", options("data"))
def test_every_data_set_composes_with_a_model_of_ones_own(option):
    config = composed(*chosen("data", option), *chosen("model", "custom"))
    assert config.data["name"] == option


@pytest.mark.parametrize(
    ("model", "data", "task"),
    [
        ("gpt_tiny", "text", "language_modeling"),
        ("gpt_small", "synthetic_tokens", "language_modeling"),
        ("mlp_small", "digits", "classification"),
        ("mlp_recipe", "synthetic", "regression"),
        ("resnet18", "synthetic_images", "classification"),
        ("resnet50", "synthetic_images", "classification"),
    ],
)
def test_a_model_brings_data_that_brings_its_task(model, data, task):
    config = composed(f"model={model}")
    assert (config.data["name"], config.task["name"]) == (data, task)


@pytest.mark.parametrize(
    ("group", "option"),
    [(group, option) for group in groups() if group not in ("model", "data") for option in options(group)],
)
def test_every_other_option_composes(group, option):
    composed(*chosen(group, option))


@pytest.mark.parametrize("mode", PRECISION_MODES)
def test_a_mode_is_the_same_in_yaml_and_in_python(mode):
    assert composed(f"precision={mode}").precision == PRECISION_MODES[mode]


def test_yaml_and_python_have_the_same_modes():
    assert set(options("precision")) == set(PRECISION_MODES)


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_point_of_every_experiment_composes(experiment):
    assert {point.config.name for point in points_of(experiment)} == {experiment}


@pytest.mark.parametrize("experiment", options("experiment"))
def test_seeds_vary_slowest_so_that_arms_alternate(experiment):
    params = OmegaConf.load(conf_dir() / "experiment" / f"{experiment}.yaml").hydra.sweeper.params
    assert next(iter(params)) == "seed"
    configs = [point.config for point in points_of(experiment)]
    seeds = [config.seed for config in configs]
    assert seeds == sorted(seeds)
    arms = [config.precision.mode for config in configs]
    num_arms = len(set(arms))
    assert arms == arms[:num_arms] * (len(arms) // num_arms)
    assert "fp32" in arms


def test_the_comparison_has_four_arms_and_three_seeds():
    points = points_of("fp32_vs_amp")
    found = {(point.config.precision.mode, point.config.seed) for point in points}
    assert found == {(mode, seed) for mode in ("fp32", "tf32", "amp_bf16", "amp_fp16") for seed in range(3)}
    assert len(points) == 12


def test_the_recipe_is_the_one_of_the_pytorch_tutorial():
    config = points_of("recipe")[0].config
    model, data = config.model, config.data
    assert (model["num_layers"], model["in_features"], model["hidden_size"], model["out_features"]) == (
        3,
        4096,
        4096,
        4096,
    )
    assert (data["batch_size"], data["num_batches"], config.trainer.epochs) == (512, 50, 3)
    assert (config.optimizer["name"], config.task["name"], config.trainer.max_grad_norm) == ("sgd", "regression", None)


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("gpt_small", (12, 768, 12)),
        ("gpt_medium", (24, 1024, 16)),
        ("gpt_large", (36, 1280, 20)),
        ("gpt_xl", (48, 1600, 25)),
    ],
)
def test_the_gpts_have_the_sizes_of_gpt_2(model, sizes):
    found = composed(f"model={model}").model
    assert (found["num_layers"], found["hidden_size"], found["num_heads"]) == sizes
    assert (found["vocab_size"], found["seq_len"]) == (50257, 1024)


def test_components_of_ones_own_take_any_key():
    config = compose_one(
        [
            *("model=custom", "model._target_=mine.Net", "+model.width=8", "+model.layers=[1,2]"),
            *("data=custom", "data._target_=mine.Data", "data.batch_size=4", "+data.noise=0.5"),
            *("task=custom", "task._target_=mine.Task", "+task.weights={a:1}"),
        ]
    )
    assert config.model == {"_target_": "mine.Net", "name": "custom", "width": 8, "layers": [1, 2]}
    assert config.data == {"_target_": "mine.Data", "name": "custom", "batch_size": 4, "provides": {}, "noise": 0.5}
    assert config.task == {"_target_": "mine.Task", "name": "custom", "weights": {"a": 1}}


def test_a_config_of_ones_own_is_found_outside_the_repository(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("_target_: mine.Net\nname: mine\nwidth: 8\n")
    config = compose_one([f"hydra.searchpath=['file://{tmp_path}']", "model=mine", "model.width=16"])
    assert config.model == {"_target_": "mine.Net", "name": "mine", "width": 16}
