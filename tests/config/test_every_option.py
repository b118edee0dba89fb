"""Every file in `conf/` composes; the options are read from the folder, so that a new file is covered."""

import inspect
import re
from dataclasses import fields
from itertools import product
from pkgutil import resolve_name

import pytest
import yaml
from omegaconf import OmegaConf

from ampsweep.config.components import SCHEMAS
from ampsweep.config.compose import compose_one, compose_points, conf_dir
from ampsweep.config.modes import MODES, PRECISION_MODES, differences
from ampsweep.config.schema import PrecisionConfig

PLACEHOLDERS = {"_target_": "mine.Part", "path": "tokens.bin", "batch_size": 4, "num_classes": 3}
"""Values for the keys that an option leaves to the user (`???`)."""
GROUPS = sorted({path.parent.name for path in conf_dir().glob("*/*.yaml")} - {"hydra", "experiment"})


def options(group):
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def chosen(group, option):
    """The overrides that choose an option and set the keys that it leaves open."""
    content = OmegaConf.to_container(OmegaConf.load(conf_dir() / group / f"{option}.yaml"))
    asked = [key for key, value in content.items() if value == "???"]
    return [f"{group}={option}", *(f"{group}.{key}={PLACEHOLDERS[key]}" for key in asked)]


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_composes(group):
    for option in options(group):
        own_model = chosen("model", "custom") if group == "data" else []
        config = compose_one([*chosen(group, option), *own_model, "trainer.eval_every=9"])
        if group in ("model", "data"):
            assert getattr(config, group)["name"] == option
        if group == "precision":
            assert config.precision == PRECISION_MODES[option], "the same in YAML and in Python"


def test_defaults_are_written_once_and_agree_with_constructors():
    for path in conf_dir().glob("*/*.yaml"):
        content, schema = yaml.safe_load(path.read_text()) or {}, None
        for line in content.get("defaults", ()) if path.parent.name in SCHEMAS else ():
            if str(line).startswith(start := f"/schema_{path.parent.name}_"):
                schema = SCHEMAS[path.parent.name][line.removeprefix(start).removesuffix("@_here_")]
        defaults = {} if schema is None else {field.name: field.default for field in fields(schema)}
        assert [key for key in content if key in defaults and defaults[key] == content[key] != "???"] == []
        if schema is not None and "_target_" in content:
            for name, parameter in inspect.signature(resolve_name(content["_target_"])).parameters.items():
                if parameter.default is not inspect.Parameter.empty:
                    assert (path, name, parameter.default) == (path, name, defaults.get(name))


def test_the_file_of_a_mode_says_what_it_is_and_holds_its_differences():
    assert set(options("precision")) == set(MODES)
    for name in MODES:
        text = (conf_dir() / "precision" / f"{name}.yaml").read_text()
        assert yaml.safe_load(text) == differences(PRECISION_MODES[name], PrecisionConfig())
        assert re.match(r"# .*\.\n", text)


def test_a_model_brings_its_data_and_task():
    brought = {
        "gpt_tiny": ("text", "language_modeling"),
        "gpt_small": ("synthetic_tokens", "language_modeling"),
        "mlp_small": ("digits", "classification"),
        "mlp_recipe": ("synthetic", "regression"),
        "resnet18": ("synthetic_images", "classification"),
    }
    configs = {model: compose_one([f"model={model}"]) for model in brought}
    assert {model: (config.data["name"], config.task["name"]) for model, config in configs.items()} == brought


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_composes_with_seeds_slowest(experiment):
    """So arms alternate, and each has a baseline of its seed early."""
    composed = compose_points([f"experiment={experiment}"], multirun=False)
    assert composed.multirun
    configs = [point.config for point in composed.points]
    assert {config.name for config in configs} == {experiment}
    params = OmegaConf.load(conf_dir() / "experiment" / f"{experiment}.yaml").hydra.sweeper.params
    assert next(iter(params)) == "seed"
    seeds, arms = [config.seed for config in configs], [config.precision.mode for config in configs]
    assert seeds == sorted(seeds)
    num_arms = len(set(arms))
    assert arms == arms[:num_arms] * (len(arms) // num_arms)
    assert "fp32" in arms
    if experiment == "fp32_vs_amp":
        assert [*zip(seeds, arms, strict=True)] == [*product(range(3), ("fp32", "tf32", "amp_bf16", "amp_fp16"))]


def test_the_recipe_is_that_of_the_pytorch_tutorial():
    config = compose_one(["experiment=recipe", "hydra.mode=RUN"])
    sizes = [config.model[key] for key in ("num_layers", "in_features", "hidden_size", "out_features")]
    assert sizes == [3, 4096, 4096, 4096]
    assert (config.data["batch_size"], config.data["num_batches"], config.trainer.epochs) == (512, 50, 3)
    assert (config.optimizer["name"], config.task["name"], config.trainer.max_grad_norm) == ("sgd", "regression", None)


def test_the_gpts_have_the_sizes_of_gpt_2():
    sizes = {"small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20), "xl": (48, 1600, 25)}
    keys = ("num_layers", "hidden_size", "num_heads", "vocab_size", "seq_len")
    models = {size: compose_one([f"model=gpt_{size}"]).model for size in sizes}
    found = {size: tuple(model[key] for key in keys) for size, model in models.items()}
    assert found == {size: (*of, 50257, 1024) for size, of in sizes.items()}


def test_custom_components_take_any_key():
    model = ["model=custom", "model._target_=mine.Net", "+model.width=8", "+model.layers=[1,2]"]
    data = ["data=custom", "data._target_=mine.Data", "data.batch_size=4", "+data.noise=0.5"]
    config = compose_one([*model, *data, "task=custom", "task._target_=mine.Task", "+task.weights={a:1}"])
    assert config.model == {"_target_": "mine.Net", "name": "custom", "width": 8, "layers": [1, 2]}
    assert config.data == {"_target_": "mine.Data", "name": "custom", "batch_size": 4, "provides": {}, "noise": 0.5}
    assert config.task == {"_target_": "mine.Task", "name": "custom", "weights": {"a": 1}}
