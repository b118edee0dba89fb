"""A W&B sweep by many agents: `python tests/benchmarks/wandb_agents.py`.

The sweep is a grid over seeds on a W&B server of the tests; `wandb sweep` and `wandb agent` are as they are. JSON goes
to stdout, progress to stderr.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import yaml
from rounds import machine

sys.path.insert(0, str(Path(__file__).parents[1]))

from wandb_command import ROOT, WandbCommand
from wandb_server import Sweep, WandbServer

from ampsweep.record import find_records, read_history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--agents", type=int, default=4)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        WandbServer() as server,
        WandbCommand(server, Path(place)) as command,
        ThreadPoolExecutor(arguments.agents) as pool,
    ):
        sweep = command.sweep(_sweep_file(Path(place), arguments.points))
        began = time.monotonic()
        agents = [command.agent(sweep, quick=False) for _ in range(arguments.agents)]
        ends = [pool.submit(agent.communicate) for agent in agents]
        while wait(ends, timeout=10.0).not_done:
            print(f"{time.monotonic() - began:.0f} s: {len(sweep.points)} points ordered", file=sys.stderr, flush=True)
        result = {
            "points": arguments.points,
            "machine": machine([os.getloadavg()[0]]),
            "seconds": round(time.monotonic() - began, 1),
            "agents": [agent.returncode for agent in agents],
            **_judged(server, sweep, Path(place)),
        }
    print(json.dumps(result, indent=1))


def _sweep_file(directory: Path, num_points: int) -> Path:
    content = yaml.safe_load((ROOT / "sweeps/fp32_vs_amp.yaml").read_text(encoding="utf-8"))
    fixed = {"model": "mlp_small", "trainer.steps": 10, "trainer.log_every": 2}
    content["parameters"] = {"seed": {"values": list(range(num_points))}}
    content["parameters"] |= {key: {"value": value} for key, value in fixed.items()}
    file = directory / "sweep.yaml"
    file.write_text(yaml.dump(content), encoding="utf-8")
    return file


def _judged(server: WandbServer, sweep: Sweep, directory: Path) -> dict[str, Any]:
    """Numbers of runs that are as they should be, and of those that are not."""
    runs = {run.name: run for run in server.runs if run.attributes.get("sweep") == sweep.name}
    found = find_records(directory / "outputs")
    records = {record.wandb.id: (place, record) for place, record in found.records}
    seeds = Counter(record.identity.seed for _, record in records.values())
    whole = [
        run
        for name, run in runs.items()
        if name in records and run.rows == read_history(records[name][0]) and run.rows and run.state == "finished"
    ]
    return {
        "points by agent": sorted(Counter(point.agent for point in sweep.points).values()),
        "runs": len(runs),
        "finished runs with all rows": len(whole),
        "points that ran once": sum(number == 1 for number in seeds.values()),
        "points that ran more than once": sum(number > 1 for number in seeds.values()),
        "points ordered that have no run": sum(point.run not in runs for point in sweep.points),
    }


if __name__ == "__main__":
    main()
