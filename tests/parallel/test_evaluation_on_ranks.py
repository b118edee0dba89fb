"""Several ranks evaluate as one process does, and leave the whole weights in one file."""

import errno

import pytest
import torch
from cases import evaluated
from trainings import GPT, OWN, STRATEGIES, assert_same, composed, single

from ampsweep.training.components.built import build_model

SETS = (
    *OWN[:1],
    *("model._target_=rank_models.EveryState", "optimizer=sgd", "task=custom", "task._target_=rank_models.Ordered"),
    *("data=custom", "data._target_=ampsweep.data.map_dataset.MapDataset", "data.batch_size=8"),
    "+data.train={_target_: rank_models.Points, length: 32, seed: 0}",
    "+data.val={near: {_target_: rank_models.Points, length: 20, seed: 1}, "
    "far: {_target_: rank_models.Points, length: 3, seed: 2}}",
)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp", "autocast"])
def test_metrics_and_weights_of_ranks_are_those_of_one_process(pair, tmp_path, strategy):
    config = composed(*SETS, *STRATEGIES[strategy])
    alone, _, _ = evaluated(None, single(config), tmp_path / "alone")
    (first, kept, parameters), (second, _, _) = pair.run("evaluated", config=config, place=tmp_path)
    assert first == second
    assert first == pytest.approx(alone, rel=1e-6)
    assert {key: first[key] for key in first if "place" in key or "items" in key} == {
        key: alone[key] for key in alone if "place" in key or "items" in key
    }
    assert [first[f"val/{name}items"] for name in ("", "near/", "far/")] == [23, 20, 3]
    model = build_model(config)
    model.load_state_dict(torch.load(tmp_path / kept.file, weights_only=True))
    assert_same(dict(model.named_parameters()), {name: parameters[name] for name, _ in model.named_parameters()})


@pytest.mark.parametrize("strategy", ["policy"])
def test_weights_that_find_no_room_on_rank_0_are_an_error_on_all(pair, tmp_path, strategy):
    config = composed(*GPT, *STRATEGIES[strategy], "precision=amp_bf16")
    error = (errno.EFBIG, str(tmp_path / "checkpoints/final.pt"))
    assert pair.run("kept_without_room", config=config, place=tmp_path) == [error] * 2
    assert [*(tmp_path / "checkpoints").iterdir()] == []
