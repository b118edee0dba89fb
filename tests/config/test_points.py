"""The points that are checked before a sweep starts are those that Hydra then runs, each composed as Hydra does."""

from dataclasses import asdict

import hydra
import pytest
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from ampsweep.config import compose
from ampsweep.config.compose import compose_each, compose_one, compose_points, conf_dir, to_config

COMMAND_LINES = {
    "an experiment, one of its sweeps replaced": ["experiment=smoke", "precision=tf32", "trainer.steps=2"],
    "a key that only the swept options have": ["model=resnet18,resnet50", "data.image_size=32"],
    "lists": ["seed=0,1", "precision=fp32", "trainer.steps=5,6", "optimizer=adamw,sgd", "optimizer.lr=1e-3,0.1"],
    "an experiment with another list": ["experiment=smoke", "precision=tf32,pure_bf16"],
    "several experiments, which then sweep nothing themselves": ["experiment=smoke,digits"],
    "a key given twice": ["seed=0,1", "trainer.steps=3", "seed=2"],
    "functions": ["seed=range(0,2)", "precision=choice(tf32)"],
    "a pattern": ["precision=glob(amp_*)", "seed=1"],
    "keys of a component": ["model=custom", "model._target_=mine.Net", "+model.width=8,16", "+model.layers=[1,2]"],
    "quoted and special values": ["data.path='/a b/c(d),e'", "tracking.tags=[a,b],[c]", "tracking.group='x,y'"],
    "null and no value": ["trainer.max_grad_norm=1e-3,null", "data.path=null", "tracking.project="],
}


def test_the_points_are_those_of_hydras_sweeper_in_its_order_and_composed_alike():
    for kind, line in COMMAND_LINES.items():
        composed = compose_points(line, multirun=True)
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
            params = [f"{key}={value}" for key, value in (composed.composed.hydra.sweeper.params or {}).items()]
            parser = OverridesParser.create(GlobalHydra.instance().config_loader())
            (batch,) = BasicSweeper.split_arguments(parser.parse_overrides([*params, *line]), None)
            by_hydra = to_config(hydra.compose("config", batch[-1]))
        last, alone = composed.points[-1], compose_one(batch[-1])
        assert (kind, [list(point.overrides) for point in composed.points]) == (kind, batch)
        assert repr(asdict(last.config)) == repr(asdict(alone)) == repr(asdict(by_hydra))


def test_hydra_composes_once_for_all_seeds_of_an_arm(monkeypatch):
    calls, real = [], compose.compose
    monkeypatch.setattr(compose, "compose", lambda *given, **more: calls.append(given) or real(*given, **more))
    points = compose_points(["precision=fp32,amp_bf16", "seed=range(0,20)"], multirun=True).points
    assert [point.config.seed for point in points] == [*range(20), *range(20)], "the first key varies slowest"
    assert len(calls) == 3, "the command line itself, and one point of each arm"
    compose_each([point.overrides for point in points])
    assert len(calls) == 5


def test_a_line_without_lists_is_one_run():
    single = compose_points(["trainer.steps=3"], multirun=False)
    assert not single.multirun
    assert [point.config.trainer.steps for point in single.points] == [3]


def test_a_multirun_is_announced_before_its_points_are_composed():
    announced = []
    compose_points(["seed=0"], multirun=False, on_multirun=lambda: announced.append("single"))
    assert announced == []
    with pytest.raises(ValueError, match="greater than 0"):
        compose_points(["trainer.steps=0"], multirun=True, on_multirun=lambda: announced.append("multirun"))
    assert announced == ["multirun"]


def test_a_sweeper_that_chooses_points_as_it_goes_is_refused():
    ours = ["hydra.sweeper._target_=mine.Sweeper", "seed=3,4", "optimizer.lr=interval(0.1,1)"]
    with pytest.raises(ValueError, match=r"hydra/sweeper: mine\.Sweeper chooses points as it goes"):
        compose_points(ours, multirun=True)
