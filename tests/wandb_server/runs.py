"""Runs, as the W&B client writes and reads them."""

import json
import math
from typing import Any

from .artifacts import artifact_node
from .graphql import GraphQLError, Node, connection
from .recorded import EVENTS, HISTORY, OUTPUT, Alert, Recorded, Run

_ATTRIBUTES = (
    *("displayName", "groupName", "jobType", "description", "notes", "tags", "config", "commit", "host", "debug"),
    *("jobProgram", "jobRepo", "sweep", "state", "summaryMetrics"),
)


class Runs:
    """What clients do to runs of ``entity``."""

    def __init__(self, recorded: Recorded, url: str, entity: str) -> None:
        self._recorded, self._url, self._entity = recorded, url, entity

    def fields(self) -> Node:
        return {
            "upsertBucket": self._upsert,
            "createRunFiles": self._create_files,
            "markRunFilesUploaded": lambda input: {"success": True},
            "notifyScriptableRunAlert": self._alert,
            "stopRun": self._stop,
        }

    def _upsert(self, input: dict[str, Any]) -> Node:
        run = self._by_id(input["id"]) if input.get("id") else None
        inserted = False
        if run is None:
            entity = input.get("entityName") or self._entity
            if entity != self._entity:
                raise GraphQLError(f"entity {entity} not found during upsertBucket", 404)
            project = input.get("modelName") or "uncategorized"
            name = input.get("name") or self._recorded.new_name()
            inserted = (entity, project, name) not in self._recorded.runs
            run = self._recorded.runs.setdefault((entity, project, name), Run(entity, project, name))
        run.attributes |= {key: input[key] for key in _ATTRIBUTES if input.get(key) is not None}
        return {"bucket": run_node(self._recorded, run, self._url), "inserted": inserted}

    def _create_files(self, input: dict[str, Any]) -> Node:
        run = self._recorded.runs[input["entityName"], input["projectName"], input["runName"]]
        files = [{"name": name, "uploadUrl": _file_url(run, name, self._url)} for name in input["files"]]
        return {"runID": run.id, "uploadHeaders": [], "files": files}

    def _alert(self, input: dict[str, Any]) -> Node:
        run = self._recorded.runs[input["entityName"], input["projectName"], input["runName"]]
        run.alerts.append(Alert(input["title"], input["text"], input["severity"]))
        return {"success": True}

    def _stop(self, input: dict[str, Any]) -> Node:
        run = self._by_id(input["id"])
        if run is None:
            raise GraphQLError(f"run {input['id']} not found", 404)
        run.should_stop = True
        return {"success": True}

    def _by_id(self, id: str) -> Run | None:
        return next((run for run in self._recorded.runs.values() if run.id == id), None)


def run_node(recorded: Recorded, run: Run, url: str) -> Node:
    """Everything that is asked about a run, from what was recorded."""
    given = run.attributes.get
    lines, events = run.streams.get(HISTORY, []), run.streams.get(EVENTS, [])
    key = run.entity, run.project, run.name
    entity = {"id": f"entity:{run.entity}", "name": run.entity}

    def history() -> list[dict[str, Any]]:
        return [_strict(row) for row in run.history]

    def pages(samples: int | None = None, minStep: int = 0, maxStep: int | None = None) -> list[str]:  # noqa: N803
        wanted = [row for row in history() if row["_step"] >= minStep and (maxStep is None or row["_step"] < maxStep)]
        return [json.dumps(row) for row in wanted[:samples]]

    def sampled(specs: list[str]) -> list[list[dict[str, Any]]]:
        return [_sampled(history(), **json.loads(spec)) for spec in specs]

    def files(after: str | None = None, first: int = 50, names: list[str] | None = None, **_: Any) -> Node:
        found = [name for name in run.files if not names or name in names]
        return connection([_file_node(run, name, url) for name in found], after, first)

    def artifacts(after: str | None = None, first: int = 50) -> Node:
        mine = [one for one in recorded.artifacts if (one.entity, one.project, one.run) == key]
        return connection([artifact_node(recorded, one, url) for one in mine], after, first)

    return {
        "__typename": "Run",
        "id": run.id,
        "name": run.name,
        "projectId": 1,
        "project": {"id": f"project:{run.entity}/{run.project}", "name": run.project, "entity": entity},
        "displayName": given("displayName") or run.name,
        **{key: given(key) for key in ("description", "notes", "jobType", "commit")},
        "tags": given("tags") or [],
        "group": given("groupName"),
        "sweepName": given("sweep"),
        "config": given("config") or "{}",
        "wandbConfig": lambda keys: json.dumps({"t": {}}),
        "summaryMetrics": lambda: json.dumps(_strict(run.summary)),
        "systemMetrics": "{}",
        "state": run.state,
        "exitcode": run.exit_code,
        "failed": run.state in ("failed", "crashed"),
        "running": run.state == "running",
        **dict.fromkeys(("stopped", "shouldStop"), run.should_stop),
        "readOnly": False,
        "user": {"__typename": "User", "name": run.entity, "username": run.entity},
        "createdAt": run.created_at,
        "heartbeatAt": run.heartbeat_at,
        "historyLineCount": len(lines),
        "eventsLineCount": len(events),
        "logLineCount": len(run.streams.get(OUTPUT, [])),
        "historyTail": json.dumps(lines[-1:]),
        "eventsTail": json.dumps(events[-1:]),
        "historyKeys": lambda: _history_keys(run),
        "history": pages,
        "events": lambda samples=None: events[:samples],
        "sampledHistory": sampled,
        "parquetHistory": lambda liveKeys=(): {"parquetUrls": [], "liveData": history()},  # noqa: N803
        "fileCount": len(run.files),
        "files": files,
        "outputArtifacts": artifacts,
    }


def _strict(value: Any) -> Any:
    """Numbers that JSON does not have, as W&B writes them: "NaN", "Infinity"."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return json.loads(f'"{json.dumps(value)}"')
    return value


def _sampled(history: list[dict[str, Any]], keys: list[str], samples: int = 500, **_: Any) -> list[dict[str, Any]]:
    rows = [{key: row[key] for key in keys} for row in history if all(key in row for key in keys)]
    return rows[:: -(-len(rows) // samples)] if len(rows) > samples else rows


def _history_keys(run: Run) -> dict[str, Any] | None:
    rows = run.history
    if not rows:
        return None
    return {"lastStep": rows[-1]["_step"], "keys": {key: {} for row in rows for key in row}}


def _file_url(run: Run, name: str, url: str) -> str:
    return f"{url}/storage/runs/{run.entity}/{run.project}/{run.name}/{name}"


def _file_node(run: Run, name: str, url: str) -> Node:
    place = _file_url(run, name, url)
    return {
        "__typename": "File",
        "id": f"{run.id}/{name}",
        "name": name,
        "url": lambda upload=False: place,
        "directUrl": place,
        "sizeBytes": len(run.files[name]),
        "mimetype": None,
        "updatedAt": run.heartbeat_at,
        "md5": None,
    }
