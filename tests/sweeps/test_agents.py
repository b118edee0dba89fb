"""Sweeps by the real `wandb sweep` and `wandb agent`: each goes on to its end, whatever becomes of its points."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import wait_until
from wandb_command import ROOT, WandbCommand, finish
from wandb_server import Sweep, WandbServer

from ampsweep.records import find_records, read_history
from ampsweep.records.outcome import OUTCOMES

SMALL: dict[str, dict[str, list[Any]]] = {
    "fp32_vs_amp": {"seed": [0, 1], "model.hidden_size": [16], "data.batch_size": [2]},
    "memory_by_batch": {"seed": [0], "data.batch_size": [2], "precision": ["amp_bf16"]},
    "scaler_tuning": {"seed": [0], "precision.init_scale": [1099511627776.0], "precision.growth_interval": [20]},
    "ddp_vs_fsdp2": {"seed": [0], "parallel": ["fsdp2"], "precision": ["amp_bf16"]},
    "precision_search": {"data.batch_size": [2], "precision": ["amp_fp16"]},
}
"""Parameters of each sweep that a test cannot wait for, with their values on the server."""


def bits(rows: list[dict[str, float]]) -> list[dict[str, str]]:
    """Rows as they can be compared: bit by bit, also where a number is NaN."""
    return [{key: float(value).hex() for key, value in row.items()} for row in rows]


@pytest.fixture
def command(wandb_server: WandbServer, tmp_path: Path) -> Iterator[WandbCommand]:
    with WandbCommand(wandb_server, tmp_path, ROOT / "tests") as command:
        yield command


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALL)
def test_agents_work_a_sweep_off_as_its_file_says(name, command):
    """Two agents share the first, without a double point; the search is capped at one point on the server."""
    sweep = command.sweep(ROOT / "sweeps" / f"{name}.yaml")
    config, wanted = yaml.safe_load(sweep.config), yaml.safe_load((ROOT / "sweeps" / f"{name}.yaml").read_text())
    for parameter in wanted["parameters"].values():  # the client names the distribution that a file leaves open
        if {"min", "max"} <= set(parameter):
            parameter.setdefault("distribution", "int_uniform")
    assert config == wanted
    config["parameters"] |= {key: {"values": values} for key, values in {**SMALL[name], "trainer.steps": [2]}.items()}
    sweep.config = yaml.dump(config | ({"run_cap": 1} if "run_cap" in config else {}))
    number = 2 if name == "fp32_vs_amp" else 1
    ended = [finish(agent) for agent in [command.agent(sweep) for _ in range(number)]]
    assert [agent.code for agent in ended] == [0] * number, ended
    assert (sweep.state, len(sweep.points)) == ("FINISHED", 4 if number == 2 else 1)
    assert len({point.agent for point in sweep.points}) == number
    if number == 2:
        assert any("waiting for cpu: another training runs on it" in agent.said for agent in ended)

    runs = [run for run in command.server.runs if run.attributes.get("sweep") == sweep.name]
    ordered = {point.run: point.values for point in sweep.points}
    assert sorted(run.name for run in runs) == sorted(ordered)
    found = find_records(command.directory / "outputs").records
    records = {record.wandb.id: (path, record) for path, record in found}
    for run in runs:
        directory, record = records[run.name]
        for key, value in ordered[run.name].items():
            group, _, rest = key.partition(".")
            at = {"precision": "mode", "parallel": "strategy"}.get(group, "name")
            trained = record.config[group]
            assert value == (trained[rest] if rest else trained if group in ("name", "seed") else trained[at])
        assert run.config.items() >= {**ordered[run.name], **asdict(record.identity), "arm": record.arm}.items()
        assert (run.attributes["groupName"], run.attributes["jobType"]) == (sweep.name, record.identity.precision_mode)
        assert (run.state, run.exit_code, run.summary["status"]) == ("finished", 0, record.status)
        assert bits(run.rows) == bits(read_history(directory))
        assert record.status in OUTCOMES  # a scale of 2**40 does not come down in two steps


def own_sweep(command: WandbCommand, parameters: dict[str, Any], **settings: Any) -> Sweep:
    """A sweep over a model of the test's own on the handwritten digits."""
    always = {"model": "custom", "model._target_": "own_models.Broken", "data": "digits"}
    always |= {"trainer.steps": 5, "trainer.log_every": 1}
    content = yaml.safe_load((ROOT / "sweeps/fp32_vs_amp.yaml").read_text())
    content["parameters"] = {key: {"value": value} for key, value in always.items()} | parameters
    (file := command.directory / "own.yaml").write_text(yaml.dump(content | settings))
    return command.sweep(file)


@pytest.mark.parametrize("number", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_no_outcome_ends_a_sweep(number, command):
    """An agent gives up after three failures in its first minute; here no point completes."""
    broken = {"values": ["runs_out_of_memory", "diverges"]}
    nested = {"parameters": {"lr": {"value": 0.05}, "fused": {"value": None}}}
    precision = {"values": ["fp32", "tf32"]}
    sweep = own_sweep(command, {"+model.what": broken, "precision": precision, "optimizer": nested}, run_cap=number)
    ended = finish(command.agent(sweep))
    assert (ended.code, sweep.state) == (0, "FINISHED")
    runs = {run.name: run for run in command.server.runs}
    ran = [runs[point.run] for point in sweep.points]
    statuses = sorted(run.summary["status"] for run in ran)
    assert statuses == (["diverged", "oom", "unsupported"] if number == 3 else ["oom"])
    assert all((run.state, run.exit_code) == ("finished", 0) and run.summary["error"] for run in ran)
    for _, record in find_records(command.directory / "outputs").records:
        optimizer = record.config["optimizer"]
        assert (optimizer["lr"], optimizer["fused"]) == (0.05, None), "nested parameters come as one argument"
        assert runs[record.wandb.id].summary["status"] == record.status


@pytest.mark.nightly
def test_a_run_that_its_sweep_stops_ends_cleanly(command):
    """As early termination, or somebody at the server's page, wants: the run is marked, or only its agent is told."""
    steps = {"trainer.steps": {"value": 1_000_000}, "+model.what": {"value": "is_fine"}, "seed": {"values": [0, 1]}}
    agent = command.agent(own_sweep(command, steps))

    def lengths():
        return [file.read_text().count("\n") for file in (command.directory / "outputs").rglob("history.jsonl")]

    for number in (1, 2):  # runs on the server begin beside their trainings
        wait_until(lambda: len(lengths()) == len(command.server.runs) == number, "the run has begun")  # noqa: B023
        wait_until(lambda: min(lengths()) > 10, "it is under way")
        run = command.server.runs[-1]
        run.should_stop, run.agent_stops = number == 1, number == 2
    assert finish(agent).code == 0
    runs = {run.name: run for run in command.server.runs}
    found = find_records(command.directory / "outputs").records
    assert len(found) == 2
    for directory, record in found:
        run = runs[record.wandb.id]
        assert (record.status, record.error) == ("completed", None)
        last = read_history(directory)[-1]["step"]
        # Whichever comes first: the agent's signal, or the run's own look at the server.
        stop = rf"stopped by its sweep: (SIGTERM|a stop on W&B) after step {last} of 1000000"
        assert re.fullmatch(stop, record.cut_short)
        assert (directory / "checkpoints/last.pt").is_file()
        assert (run.state, run.exit_code, run.summary["cut_short"]) == ("finished", 0, record.cut_short)
        assert bits(run.rows) == bits(read_history(directory))
