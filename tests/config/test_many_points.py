"""Sweeps of many points are composed from few: each as Hydra composes it, at a fraction of the cost."""

import pytest

from ampsweep.config import compose
from ampsweep.config.compose import compose_each, compose_one, compose_points
from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash, resolved_values

SWEPT = (
    ["model=mlp_small,gpt_tiny", "optimizer.lr=1e-3,0.1"],
    ["precision=amp_fp16", "trainer.eval_every=null,3", "optimizer=adamw,sgd"],
    ["model=custom", "model._target_=torch.nn.Linear,torch.nn.Identity", "+model.in_features=3", "seed=1,2"],
    ["model=gpt_tiny", "model.hidden_size=32,64", "name=a,'b c'"],
)


@pytest.mark.parametrize("overrides", SWEPT, ids=["groups", "nulls", "added", "sizes"])
def test_a_point_is_what_hydra_makes_of_it_alone(overrides: list[str]) -> None:
    for point in compose_points(overrides, multirun=True).points:
        alone = compose_one(point.overrides)
        assert repr(resolved_values(point.config)) == repr(resolved_values(alone))
        assert config_hash(point.config) == config_hash(alone)


def test_hydra_composes_once_for_all_seeds_of_an_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[object] = []
    real = compose.compose

    def counted(*arguments, **more):
        composed.append(arguments)
        return real(*arguments, **more)

    monkeypatch.setattr(compose, "compose", counted)
    points = compose_points(["precision=fp32,amp_bf16", "seed=range(0,20)"], multirun=True).points
    assert [point.config.seed for point in points] == [*range(20), *range(20)]
    assert len(composed) == 3, "the command line itself, and one point of each arm"
    compose_each([point.overrides for point in points])
    assert len(composed) == 5


def test_a_wrong_value_among_many_is_told_as_ever() -> None:
    with pytest.raises(UserError) as alone:
        compose_one(["trainer.steps=many"])
    with pytest.raises(UserError) as among_others:
        compose_points(["trainer.steps=1,2,many"], multirun=True)
    assert str(among_others.value) == str(alone.value)
