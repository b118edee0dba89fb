"""Runs on the tests' W&B server, recorded as if their client had sent them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from wandb_server import ENTITY, Run, WandbServer
from wandb_server.recorded import HISTORY

from ampsweep.records import RunRecord


def record_run(
    server: WandbServer,
    id: str,
    record: RunRecord | None,
    rows: Iterable[Mapping[str, Any]] = (),
    *,
    project: str = "mine",
    state: str = "finished",
    **attributes: str,
) -> Run:
    """A run with the record that it sent, or one of another tool; ``attributes`` as UpsertBucket has them."""
    run = Run(ENTITY, project, id, state=state, attributes={"displayName": f"run {id}", **attributes})
    stamps = ({"_step": index, "_timestamp": 1.7e9 + index, "_runtime": index} for index in range(1_000_000))
    run.streams[HISTORY] = [json.dumps(stamp | dict(row)) for stamp, row in zip(stamps, rows, strict=False)]
    if record is not None:
        run.files["record.json"] = json.dumps(record.as_json(), indent=1).encode()
        run.attributes["config"] = json.dumps({"precision_mode": {"value": record.identity.precision_mode}})
    with server.lock:
        server.recorded.runs[ENTITY, project, id] = run
    return run
