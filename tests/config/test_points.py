"""What is checked before a sweep starts is what Hydra then runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from ampsweep.config.compose import compose_one, compose_points, conf_dir

RUN_BY_HYDRA = {
    "an experiment, a value in place of what it sweeps": ["experiment=smoke", "precision=tf32", "trainer.steps=2"],
    "a key that only the swept options have": ["model=resnet18,resnet50", "data.image_size=32"],
}
"""These Hydra really runs, with a job that does nothing; the others are taken apart by its sweeper."""

COMMAND_LINES = RUN_BY_HYDRA | {
    "a list": ["seed=0,1", "precision=fp32", "trainer.steps=5,6"],
    "an experiment": ["experiment=smoke", "trainer.steps=2"],
    "a list in place of what the experiment sweeps": ["experiment=smoke", "precision=tf32,pure_bf16"],
    "several experiments, which then sweep nothing themselves": ["experiment=smoke,digits"],
    "a key given twice": ["seed=0,1", "trainer.steps=3", "seed=2"],
    "functions": ["seed=range(0,2)", "precision=choice(tf32)"],
    "a pattern": ["precision=glob(amp_*)", "seed=1"],
    "a component's keys": ["model=custom", "model._target_=mine.Net", "+model.width=8,16", "+model.layers=[1,2]"],
    "quoted and special values": ["data.path='/a b/c(d),e'", "tracking.tags=[a,b],[c]", "tracking.group='x,y'"],
    "null and no value": ["trainer.max_grad_norm=1e-3,null", "data.path=null", "tracking.project="],
}


@pytest.fixture(scope="module")
def composed():
    return {kind: compose_points(line, multirun=True) for kind, line in COMMAND_LINES.items()}


@pytest.mark.parametrize("kind", COMMAND_LINES)
def test_the_points_are_those_of_hydras_sweeper_in_its_order(kind, composed):
    with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
        params = [f"{key}={value}" for key, value in (composed[kind].composed.hydra.sweeper.params or {}).items()]
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        (batch,) = BasicSweeper.split_arguments(parser.parse_overrides([*params, *COMMAND_LINES[kind]]), None)
    assert [list(point.overrides) for point in composed[kind].points] == batch


def test_the_points_are_the_jobs_that_hydra_runs(composed, tmp_path, repository):
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("hydra_jobs.py")],
        input=json.dumps(list(RUN_BY_HYDRA.values())),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(repository / "src")},
    )
    points = [[list(point.overrides) for point in composed[kind].points] for kind in RUN_BY_HYDRA]
    assert json.loads(done.stdout) == points


def test_a_point_is_what_its_overrides_compose_to():
    for point in compose_points(["experiment=smoke", "seed=7"], multirun=False).points:
        assert compose_points(point.overrides, multirun=True).points[0].config == point.config
        assert point.config.seed == 7


def test_the_first_key_varies_slowest():
    points = compose_points(["seed=0,1", "model.num_layers=1,2"], multirun=True).points
    found = [(point.config.seed, point.config.model["num_layers"]) for point in points]
    assert found == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_key_of_some_options_alone_reaches_their_points():
    points = compose_points(["model=resnet18,resnet50", "data.image_size=32"], multirun=True).points
    assert [(p.config.model["depth"], p.config.data["image_size"]) for p in points] == [(18, 32), (50, 32)]


def test_a_line_without_lists_is_one_run():
    composed = compose_points(["trainer.steps=3"], multirun=False)
    assert not composed.multirun
    assert [point.config for point in composed.points] == [compose_one(["trainer.steps=3"])]


def test_a_multirun_is_announced_before_its_points_are_composed():
    told = []
    compose_points(["seed=0"], multirun=False, on_multirun=lambda: told.append("single"))
    assert told == []
    with pytest.raises(ValueError, match="greater than 0"):
        compose_points(["trainer.steps=0"], multirun=True, on_multirun=lambda: told.append("multirun"))
    assert told == ["multirun"]


def test_a_sweeper_that_chooses_as_it_goes_is_refused():
    ours = ["hydra.sweeper._target_=mine.Sweeper", "seed=3,4", "optimizer.lr=interval(0.1,1)"]
    with pytest.raises(ValueError, match=r"hydra/sweeper: mine\.Sweeper chooses points as it goes"):
        compose_points(ours, multirun=True)
