"""Sweeps of any program: the commands are those of a `wandb agent`, and the arms are found by their words."""

import json
import sys
from pathlib import Path

import pytest
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from ampsweep.config.errors import UserError
from ampsweep.config.sweep_file import read_sweep
from ampsweep.sweep.command_runs import JSON_FILE
from ampsweep.sweep.script_sweep import is_of_suite, script_points

PARAMETERS = """
parameters:
  mixed_precision: {values: ["no", bf16]}
  weight-decay: {value: 0.1}
  use_cache: {value: true}
  fused: {value: false}
  note: {value: null}
  layers: {value: [1, 2]}
  optimizer: {parameters: {name: {value: adam}, lr: {value: 1.0e-3}}}
"""


@pytest.fixture
def points(tmp_path):
    def points(text, *given):
        (tmp_path / "sweep.yaml").write_text(text)
        return script_points(read_sweep(tmp_path / "sweep.yaml"), *given or (None,))

    return points


MACROS = "args args_no_equals args_no_hyphens args_no_boolean_flags args_json args_append_hydra args_override_hydra"


@pytest.mark.parametrize("macro", MACROS.split())
def test_macros_are_expanded_as_by_the_agent_of_wandb(points, macro):
    found = points(f"program: t.py\nmethod: grid\ncommand: [python, x.py, '${{{macro}}}']\n{PARAMETERS}")
    assert [point.arm for point in found] == ["no", "bf16"]
    for point in found:
        theirs = create_sweep_command_args({"args": {key: {"value": of} for key, of in point.parameters.items()}})
        assert point.words == ("python", "x.py", *theirs[macro])
    assert found[0].parameters["optimizer"] == {"name": "adam", "lr": 1e-3}


def test_a_command_has_the_program_variables_and_a_file(points, monkeypatch):
    monkeypatch.setenv("DATA", "/data")
    written = "command: ['${interpreter}', -u, '${program}', '--data=${envvar:DATA}/x', '${args_json_file}', 3]"
    (point, _) = points(f"program: sub/t.py\nmethod: grid\n{written}\n{PARAMETERS}")
    assert point.words == (sys.executable, "-u", "sub/t.py", "--data=/data/x", JSON_FILE, "3")
    (point, _) = points(f"program: sub/t.py\nmethod: grid\n{PARAMETERS}")
    assert point.words[-8:-6] == ("sub/t.py", "--mixed_precision=no")


@pytest.mark.parametrize(
    ("parameters", "arms"),
    [
        ({"precision": [16, 32], "batch_size": [16, 32]}, {"16", "32"}),
        ({"trainer.use_amp": [True, False], "lr": [0.1, 0.2]}, {"use_amp", "no use_amp"}),
        ({"recipe": ["fp32", "bf16-mixed"], "size": ["full", "no"]}, {"fp32", "bf16-mixed"}),
        ({"batch_size": [16, 32]}, None),
        ({"size": ["32", "full"]}, None),
    ],
)
def test_arms_are_the_parameter_with_words_of_a_precision(points, parameters, arms):
    content = {"program": "t.py", "method": "grid"}
    text = json.dumps(content | {"parameters": {key: {"values": values} for key, values in parameters.items()}})
    if arms is None:
        with pytest.raises(UserError, match="which parameter names the arms"):
            points(text)
        return
    assert {point.arm for point in points(text)} == arms
    assert len({point.arm for point in points(text, None, [*parameters])}) > len(arms), "several keys together"


def test_the_train_py_of_others_is_not_the_suites(tmp_path, monkeypatch, repository):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"program: train.py\nmethod: grid\n{PARAMETERS}")
    monkeypatch.chdir(repository)
    assert is_of_suite(read_sweep(sweep))
    monkeypatch.chdir(tmp_path)
    assert is_of_suite(read_sweep(sweep)), "the suite's need not be there"
    Path("train.py").write_text("import torch")
    assert not is_of_suite(read_sweep(sweep))
