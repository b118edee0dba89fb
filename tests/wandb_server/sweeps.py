"""Sweeps and their agents, as the W&B client creates, asks and steers them."""

import json
from typing import Any

import yaml

from .agents import commands, grid
from .graphql import GraphQLError, Node, connection
from .recorded import Recorded, Sweep
from .runs import run_node


class Sweeps:
    """What clients do to sweeps of ``entity``."""

    def __init__(self, recorded: Recorded, url: str, entity: str) -> None:
        self._recorded, self._url, self._entity = recorded, url, entity

    def fields(self) -> Node:
        return {
            "upsertSweep": self._upsert,
            "createAgent": self._create_agent,
            "agentHeartbeat": self._heartbeat,
        }

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
        answer = commands(self._recorded, sweep, input["id"], json.loads(input.get("runState") or "{}"))
        return {"agent": {"id": input["id"]}, "commands": json.dumps(answer)}


def sweep_node(recorded: Recorded, sweep: Sweep, url: str) -> Node:
    config = yaml.safe_load(sweep.config)
    runs = [run for run in recorded.runs.values() if run.attributes.get("sweep") == sweep.name]
    return {
        "__typename": "Sweep",
        "id": sweep.id,
        "name": sweep.name,
        "project": {
            "id": f"project:{sweep.entity}/{sweep.project}",
            "name": sweep.project,
            "entity": {"id": f"entity:{sweep.entity}", "name": sweep.entity},
        },
        "displayName": config.get("name"),
        "description": config.get("description"),
        "method": config["method"],
        "state": sweep.state,
        "config": sweep.config,
        "createdAt": sweep.created_at,
        "heartbeatAt": sweep.created_at,
        "updatedAt": sweep.created_at,
        "earlyStopJobRunning": False,
        "bestLoss": None,
        "controller": None,
        "scheduler": None,
        "runCount": len(runs),
        "runCountExpected": len(list(grid(config["parameters"]))) if config["method"] == "grid" else None,
        "runs": lambda: connection([run_node(recorded, run, url) for run in runs]),
    }
