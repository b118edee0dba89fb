"""What a sweep tells its agents: the next point, to stop a run, or to leave."""

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from .recorded import Point, Recorded, Run, Sweep

Command = dict[str, Any]


def commands(recorded: Recorded, sweep: Sweep, agent: str, running: Mapping[str, bool]) -> list[Command]:
    """The answer to a heartbeat of ``agent``, whose processes of the runs in ``running`` are alive."""
    stops = [
        name
        for name in running
        if (run := run_of(recorded, sweep, name)) is not None and (run.should_stop or run.agent_stops)
    ]
    if sweep.state == "CANCELED":
        return [{"type": "exit"}]
    if stops:
        return [{"type": "stop", "run_id": name} for name in stops]
    if running or sweep.state == "PAUSED":
        return []
    values = next_values(sweep) if sweep.state == "RUNNING" else None
    if values is None:
        sweep.state = "FINISHED"
        return [{"type": "exit"}]
    point = Point(recorded.new_name(), agent, values)
    sweep.points.append(point)
    program = yaml.safe_load(sweep.config).get("program")
    args = {key: {"value": value} for key, value in values.items()}
    return [{"type": "run", "run_id": point.run, "program": program, "args": args}]


def run_of(recorded: Recorded, sweep: Sweep, name: str) -> Run | None:
    return recorded.runs.get((sweep.entity, sweep.project, name))


def next_values(sweep: Sweep) -> dict[str, Any] | None:
    """The parameters of the next point; None where there is none left."""
    config = yaml.safe_load(sweep.config)
    number = len(sweep.points)
    if number >= config.get("run_cap", float("inf")):
        return None
    if config["method"] == "grid":
        return next(itertools.islice(grid(config["parameters"]), number, None), None)
    # Random and Bayesian search draw alike: what is tested is the client, which cannot tell them apart.
    draw = random.Random(f"{sweep.name}/{number}")
    return {key: drawn(parameter, draw) for key, parameter in config["parameters"].items()}


def grid(parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination; the first parameter varies slowest, nested ones stay nested."""
    for values in itertools.product(*(choices(parameter) for parameter in parameters.values())):
        yield dict(zip(parameters, values, strict=True))


def choices(parameter: Mapping[str, Any]) -> list[Any]:
    if "parameters" in parameter:
        return list(grid(parameter["parameters"]))
    return [parameter["value"]] if "value" in parameter else list(parameter["values"])


def drawn(parameter: Mapping[str, Any], draw: random.Random) -> Any:
    if "parameters" in parameter:
        return {key: drawn(inner, draw) for key, inner in parameter["parameters"].items()}
    if "min" not in parameter:
        return draw.choice(choices(parameter))
    low, high = parameter["min"], parameter["max"]
    if "int" in parameter.get("distribution", ""):
        return draw.randint(low, high)
    if parameter.get("distribution", "").startswith("log_uniform_values"):
        return low * (high / low) ** draw.random()
    return draw.uniform(low, high)
