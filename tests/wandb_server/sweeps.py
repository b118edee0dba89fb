"""Sweeps, as the W&B client creates them; their agents, and the points that these get."""

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from .graphql import GraphQLError, Node, connection
from .recorded import Point, Recorded, Sweep
from .runs import run_node


class Sweeps:
    """The mutations of sweeps of `entity`."""

    def __init__(self, recorded: Recorded, url: str, entity: str) -> None:
        self._recorded, self._url, self._entity = recorded, url, entity

    def fields(self) -> Node:
        return {"upsertSweep": self._upsert, "createAgent": self._create_agent, "agentHeartbeat": self._heartbeat}

    def _upsert(self, input: dict[str, Any]) -> Node:
        entity, project = input.get("entityName") or self._entity, input.get("projectName") or "uncategorized"
        if entity != self._entity:
            raise GraphQLError(f"entity {entity} not found during upsertSweep", 404)
        sweep = next((sweep for sweep in self._recorded.sweeps.values() if sweep.id == input.get("id")), None)
        if sweep is None:
            sweep = Sweep(entity, project, self._recorded.new_name(), input["config"])
            self._recorded.sweeps[entity, project, sweep.name] = sweep
        sweep.config, sweep.state = input.get("config") or sweep.config, input.get("state") or sweep.state
        return {"sweep": sweep_node(self._recorded, sweep, self._url), "configValidationWarnings": []}

    def _create_agent(self, input: dict[str, Any]) -> Node:
        key = (input.get("entityName") or self._entity, input["projectName"], input["sweep"])
        if key not in self._recorded.sweeps:
            raise GraphQLError(f"sweep {input['sweep']} not found", 404)
        agent = f"agent:{self._recorded.new_name()}"
        self._recorded.sweeps[key].agents[agent] = input["host"]
        return {"agent": {"id": agent}}

    def _heartbeat(self, input: dict[str, Any]) -> Node:
        sweep = next((sweep for sweep in self._recorded.sweeps.values() if input["id"] in sweep.agents), None)
        if sweep is None:
            raise GraphQLError(f"agent {input['id']} not found", 404)
        answer = _commands(self._recorded, sweep, input["id"], json.loads(input.get("runState") or "{}"))
        return {"agent": {"id": input["id"]}, "commands": json.dumps(answer)}


def sweep_node(recorded: Recorded, sweep: Sweep, url: str) -> Node:
    config = yaml.safe_load(sweep.config)
    runs = [run for run in recorded.runs.values() if run.attributes.get("sweep") == sweep.name]
    entity = {"id": f"entity:{sweep.entity}", "name": sweep.entity}
    return {
        "__typename": "Sweep",
        "id": sweep.id,
        "name": sweep.name,
        "project": {"id": f"project:{sweep.entity}/{sweep.project}", "name": sweep.project, "entity": entity},
        "displayName": config.get("name"),
        "description": config.get("description"),
        "method": config["method"],
        "state": sweep.state,
        "config": sweep.config,
        **dict.fromkeys(("createdAt", "heartbeatAt", "updatedAt"), sweep.created_at),
        "earlyStopJobRunning": False,
        **dict.fromkeys(("bestLoss", "controller", "scheduler")),
        "runCount": len(runs),
        "runCountExpected": len([*_grid(config["parameters"])]) if config["method"] == "grid" else None,
        "runs": lambda: connection([run_node(recorded, run, url) for run in runs]),
    }


def _commands(recorded: Recorded, sweep: Sweep, agent: str, running: Mapping[str, bool]) -> list[dict[str, Any]]:
    """The answer to a heartbeat of `agent`, whose processes of the runs in `running` are alive."""
    runs = {name: recorded.runs.get((sweep.entity, sweep.project, name)) for name in running}
    stops = [name for name, run in runs.items() if run is not None and (run.should_stop or run.agent_stops)]
    if sweep.state == "CANCELED":
        return [{"type": "exit"}]
    if stops:
        return [{"type": "stop", "run_id": name} for name in stops]
    if running or sweep.state == "PAUSED":
        return []
    values = _next_values(sweep) if sweep.state == "RUNNING" else None
    if values is None:
        sweep.state = "FINISHED"
        return [{"type": "exit"}]
    point = Point(recorded.new_name(), agent, values)
    sweep.points.append(point)
    program = yaml.safe_load(sweep.config).get("program")
    args = {key: {"value": value} for key, value in values.items()}
    return [{"type": "run", "run_id": point.run, "program": program, "args": args}]


def _next_values(sweep: Sweep) -> dict[str, Any] | None:
    """The parameters of the next point; None where there is none left."""
    config = yaml.safe_load(sweep.config)
    number = len(sweep.points)
    if number >= config.get("run_cap", float("inf")):
        return None
    if config["method"] == "grid":
        return next(itertools.islice(_grid(config["parameters"]), number, None), None)
    # Random and Bayesian search draw alike: the tested client cannot distinguish them.
    draw = random.Random(f"{sweep.name}/{number}")
    return {key: _drawn(parameter, draw) for key, parameter in config["parameters"].items()}


def _grid(parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination; the first parameter varies slowest, nested ones stay nested."""
    for values in itertools.product(*map(_choices, parameters.values())):
        yield dict(zip(parameters, values, strict=True))


def _choices(parameter: Mapping[str, Any]) -> list[Any]:
    if "parameters" in parameter:
        return list(_grid(parameter["parameters"]))
    return [parameter["value"]] if "value" in parameter else list(parameter["values"])


def _drawn(parameter: Mapping[str, Any], draw: random.Random) -> Any:
    if "parameters" in parameter:
        return {key: _drawn(inner, draw) for key, inner in parameter["parameters"].items()}
    if "min" not in parameter:
        return draw.choice(_choices(parameter))
    low, high = parameter["min"], parameter["max"]
    if "int" in parameter.get("distribution", ""):
        return draw.randint(low, high)
    if parameter.get("distribution", "").startswith("log_uniform_values"):
        return low * (high / low) ** draw.random()
    return draw.uniform(low, high)
