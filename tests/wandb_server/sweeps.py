"""The points of a sweep, one after the other, for the agents that work it off."""

import itertools
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import yaml

from .recorded import Recorded, Sweep, new_name


def commands(recorded: Recorded, sweep: Sweep, agent: str, running: Mapping[str, bool]) -> list[dict[str, Any]]:
    """The answer to a heartbeat of `agent`, whose processes of the runs in `running` are alive."""
    runs = {name: recorded.runs.get((sweep.entity, sweep.project, name)) for name in running}
    stops = [name for name, run in runs.items() if run is not None and (run.should_stop or run.agent_stops)]
    if running:
        return [{"type": "stop", "run_id": name} for name in stops]
    values = _next_values(sweep)
    if values is None:
        sweep.state = "FINISHED"
        return [{"type": "exit"}]
    point = SimpleNamespace(run=new_name(), agent=agent, values=values)
    sweep.points.append(point)
    program = yaml.safe_load(sweep.config).get("program")
    args = {key: {"value": value} for key, value in values.items()}
    return [{"type": "run", "run_id": point.run, "program": program, "args": args}]


def _next_values(sweep: Sweep) -> dict[str, Any] | None:
    """The parameters of the next point; None where there is none left."""
    config, number = yaml.safe_load(sweep.config), len(sweep.points)
    if number >= config.get("run_cap", float("inf")):
        return None
    if config["method"] == "grid":
        return next(itertools.islice(_grid(config["parameters"]), number, None), None)
    # Random and Bayesian search: the tested client cannot tell what was drawn at random.
    return {
        key: parameter["min"] if "min" in parameter else _choices(parameter)[0]
        for key, parameter in config["parameters"].items()
    }


def _grid(parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination; the first parameter varies slowest, nested ones stay nested."""
    for values in itertools.product(*map(_choices, parameters.values())):
        yield dict(zip(parameters, values, strict=True))


def _choices(parameter: Mapping[str, Any]) -> list[Any]:
    if "parameters" in parameter:
        return list(_grid(parameter["parameters"]))
    return [parameter["value"]] if "value" in parameter else list(parameter["values"])
