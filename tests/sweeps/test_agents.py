"""Sweeps by the real `wandb sweep` and `wandb agent`: each goes on to its end, whatever becomes of its points."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from wandb_command import ROOT, Ended, WandbCommand, finish
from wandb_server import Run, Sweep, WandbServer

from ampsweep.record import RunRecord, find_records, read_history
from ampsweep.record.outcome import OUTCOMES

SMALL: dict[str, dict[str, Any]] = {
    "fp32_vs_amp": {
        "seed": {"values": [0]},
        "model.num_layers": {"values": [1]},
        "model.hidden_size": {"values": [16]},
    },
    "memory_by_batch": {"data.batch_size": {"values": [2]}, "precision": {"values": ["amp_bf16"]}},
    "scaler_tuning": {
        "seed": {"values": [0]},
        "precision.init_scale": {"values": [1099511627776.0]},
        "precision.growth_interval": {"values": [20]},
    },
    "ddp_vs_fsdp2": {"seed": {"values": [0]}, "parallel": {"values": ["fsdp2"]}, "precision": {"values": ["amp_bf16"]}},
    "amp_fp16_search": {},
}
"""Parameters of each sweep that a test cannot wait for, and what it puts in their place on the server."""

NUM_AGENTS = {"fp32_vs_amp": 2}
NUM_POINTS = {"fp32_vs_amp": 3, "memory_by_batch": 1, "scaler_tuning": 1, "ddp_vs_fsdp2": 1, "amp_fp16_search": 1}
"""Of the search, the cap of its runs: it would go on."""


@dataclass(frozen=True)
class Swept:
    """A sweep that its agents have worked off."""

    sweep: Sweep
    created: dict[str, Any]
    """Its config as `wandb sweep` sent it."""
    agents: list[Ended]
    runs: list[Run]
    records: dict[str, tuple[Path, RunRecord]]
    """Run directories and records by W&B run."""


def narrow(sweep: Sweep, parameters: dict[str, Any], num_points: int) -> None:
    """Change the sweep's config on the server, as its page lets a user do."""
    config = yaml.safe_load(sweep.config)
    config["parameters"] |= parameters
    if "run_cap" in config:
        config["run_cap"] = num_points
    sweep.config = yaml.dump(config)


def swept(server: WandbServer, command: WandbCommand, sweep: Sweep, created: dict[str, Any], agents: Any) -> Swept:
    ended = [finish(agent) for agent in agents]
    runs = [run for run in server.runs if run.attributes.get("sweep") == sweep.name]
    found = find_records(command.directory / "outputs").records
    return Swept(sweep, created, ended, runs, {record.wandb.id: (path, record) for path, record in found})


def bits(rows: list[dict[str, float]]) -> list[dict[str, str]]:
    """Rows as they can be compared: bit by bit, where a number may be none."""
    return [{key: float(value).hex() for key, value in row.items()} for row in rows]


@pytest.fixture(scope="module")
def all_swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Swept]]:
    """Every sweep in `sweeps/`, created from its file, made small and worked off, all at the same time."""
    with WandbServer() as server, WandbCommand(server, tmp_path_factory.mktemp("sweeps")) as command:
        begun = {}
        for name, parameters in SMALL.items():
            sweep = command.sweep(ROOT / "sweeps" / f"{name}.yaml")
            created = yaml.safe_load(sweep.config)
            narrow(sweep, {**parameters, "trainer.steps": {"value": 2}}, NUM_POINTS[name])
            agents = [command.agent(sweep, quick=NUM_POINTS[name] > 1) for _ in range(NUM_AGENTS.get(name, 1))]
            begun[name] = (sweep, created, agents)
        yield {name: swept(server, command, *parts) for name, parts in begun.items()}


def test_all_sweeps_are_tried():
    assert {path.stem for path in (ROOT / "sweeps").glob("*.yaml")} == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_server_has_the_sweep_as_its_file_says(all_swept, name):
    wanted = yaml.safe_load((ROOT / "sweeps" / f"{name}.yaml").read_text())
    for parameter in wanted["parameters"].values():  # the client names the distribution that a file leaves open
        if {"min", "max"} <= set(parameter):
            parameter.setdefault("distribution", "int_uniform")
    assert all_swept[name].created == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_agents_work_it_off(all_swept, name):
    swept = all_swept[name]
    assert [ended.code for ended in swept.agents] == [0] * NUM_AGENTS.get(name, 1), swept.agents
    assert swept.sweep.state == "FINISHED"
    assert len(swept.sweep.points) == NUM_POINTS[name]
    assert sorted(run.name for run in swept.runs) == sorted(point.run for point in swept.sweep.points)
    assert all((run.state, run.exit_code) == ("finished", 0) for run in swept.runs)


@pytest.mark.slow
def test_two_agents_share_a_sweep_without_a_double_point(all_swept):
    swept = all_swept["fp32_vs_amp"]
    assert len({point.agent for point in swept.sweep.points}) == 2
    assert sorted(run.config["precision_mode"] for run in swept.runs) == ["amp_bf16", "amp_fp16", "fp32"]
    waited = "waiting for cpu: another training runs on it"
    assert any(waited in agent.said for agent in swept.agents), "one device, one training at a time"


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_point_is_trained_as_the_server_ordered_it(all_swept, name):
    swept = all_swept[name]
    for point in swept.sweep.points:
        config = swept.records[point.run][1].config
        for key, value in point.values.items():
            group, _, rest = key.partition(".")
            if rest:
                assert config[group][rest] == value
            elif group in ("name", "seed"):
                assert config[group] == value
            else:
                assert config[group][{"precision": "mode", "parallel": "strategy"}.get(group, "name")] == value


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_run_has_the_identity_beside_what_the_sweep_wrote(all_swept, name):
    swept = all_swept[name]
    for run in swept.runs:
        directory, record = swept.records[run.name]
        ordered = next(point.values for point in swept.sweep.points if point.run == run.name)
        assert {key: run.config[key] for key in ordered} == ordered
        identity = asdict(record.identity)
        assert {key: run.config[key] for key in identity} == identity
        assert run.config["arm"] == record.arm
        assert run.attributes["groupName"] == swept.sweep.name
        assert run.attributes["jobType"] == record.identity.precision_mode
        assert bits(run.rows) == bits(read_history(directory))
        assert run.summary["status"] == record.status
        assert record.status in OUTCOMES  # a scale of 2**22 or 2**40 does not come down in two steps


@pytest.fixture
def command(wandb_server: WandbServer, tmp_path: Path) -> Iterator[WandbCommand]:
    with WandbCommand(wandb_server, tmp_path, ROOT / "tests/commands") as command:
        yield command


def own_sweep(command: WandbCommand, parameters: dict[str, Any], **settings: Any) -> Sweep:
    """A sweep over a model of the test's own on the handwritten digits."""
    always = {
        "model": "custom",
        "model._target_": "own_models.Broken",
        "data": "digits",
        "trainer.steps": 5,
        "trainer.log_every": 1,
    }
    content = yaml.safe_load((ROOT / "sweeps/fp32_vs_amp.yaml").read_text())
    content["parameters"] = {key: {"value": value} for key, value in always.items()} | parameters
    content |= settings
    file = command.directory / "own.yaml"
    file.write_text(yaml.dump(content))
    return command.sweep(file)


@pytest.mark.slow
def test_no_outcome_ends_a_sweep(command):
    """An agent gives up after three failures in its first minute; here no point completes."""
    broken = {"values": ["runs_out_of_memory", "diverges"]}
    nested = {"parameters": {"lr": {"value": 0.05}, "fused": {"value": None}}}
    precision = {"values": ["fp32", "tf32"]}
    sweep = own_sweep(command, {"+model.what": broken, "precision": precision, "optimizer": nested}, run_cap=3)
    ended = finish(command.agent(sweep))
    assert ended.code == 0
    assert sweep.state == "FINISHED"
    runs = {run.name: run for run in command.server.runs}
    ran = [runs[point.run] for point in sweep.points]
    assert sorted(run.summary["status"] for run in ran) == ["diverged", "oom", "unsupported"]
    assert all((run.state, run.exit_code) == ("finished", 0) for run in ran)
    assert all(run.summary["error"] for run in ran)
    for _, record in find_records(command.directory / "outputs").records:
        optimizer = record.config["optimizer"]
        assert (optimizer["lr"], optimizer["fused"]) == (0.05, None), "nested parameters come as one argument"
        assert runs[record.wandb.id].summary["status"] == record.status


@pytest.mark.slow
def test_a_bad_configuration_does(command):
    steps = {"values": [-1, -2, -3, -4]}
    sweep = own_sweep(command, {"trainer.steps": steps, "+model.what": {"value": "is_fine"}})
    ended = finish(command.agent(sweep))
    assert "Detected 3 failed runs in the first 60 seconds, shutting down." in ended.said
    assert "error: trainer.steps=-1: must be greater than 0" in ended.said
    assert (sweep.state, len(sweep.points)) == ("RUNNING", 3)
    assert command.server.runs == []


@pytest.mark.slow
def test_a_run_that_its_sweep_stops_ends_cleanly(command):
    """As early termination, or somebody at the server's page, wants: the run is marked, or only its agent is told."""
    steps = {"trainer.steps": {"value": 1_000_000}, "+model.what": {"value": "is_fine"}, "seed": {"values": [0, 1]}}
    agent = command.agent(own_sweep(command, steps))
    for number in (1, 2):
        deadline = time.monotonic() + 60
        while not (histories := list((command.directory / "outputs").rglob("history.jsonl"))) or not (
            len(histories) == len(command.server.runs) == number  # which begin beside the training
            and all(history.read_text().count("\n") > 10 for history in histories)
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run = command.server.runs[-1]
        run.should_stop, run.agent_stops = number == 1, number == 2
    ended = finish(agent)
    assert ended.code == 0
    runs = {run.name: run for run in command.server.runs}
    found = find_records(command.directory / "outputs").records
    assert len(found) == 2
    for directory, record in found:
        run = runs[record.wandb.id]
        assert (record.status, record.error) == ("completed", None)
        last = read_history(directory)[-1]["step"]
        # Whichever comes first: the agent's signal, or the run's own look at the server.
        reasons = [f"stopped by its sweep: {one} after step {last} of 1000000" for one in ("SIGTERM", "a stop on W&B")]
        assert record.cut_short in reasons
        assert (directory / "checkpoints/last.pt").is_file()
        assert (run.state, run.exit_code) == ("finished", 0)
        assert run.summary["cut_short"] == record.cut_short
        assert bits(run.rows) == bits(read_history(directory))
