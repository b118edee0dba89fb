"""Answers to the GraphQL operations of W&B's client, by their names; they may hold more than is asked for."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import yaml

from .recorded import ENTITY, EVENTS, HISTORY, Artifact, Recorded, Run, Sweep, new_name, now
from .sweeps import commands

Node = dict[str, Any]
Given = Mapping[str, Any]
"""The variables of an operation."""

_ABOUT_A_PROJECT = (
    *(
        "ProjectInternalId",
        "Runs",
        "Run",
        "RunFullHistory",
        "RunResumeStatus",
        "RunFiles",
        "RunHistoryKeys",
        "RunParquetHistory",
    ),
    *("HistoryPage", "SampledHistoryPage", "GetSweep", "SweepWithRuns", "ArtifactType", "ArtifactMembershipByName"),
)


class RefusedError(Exception):
    """Sent to the client instead of data, with the status of the HTTP answer."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


def operation_name(query: str) -> str:
    found = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
    return "" if found is None else found[1]


class Operations:
    """What the only user, of `ENTITY`, can ask and do; a project comes into being with its first run or sweep."""

    def __init__(self, recorded: Recorded, url: str) -> None:
        self._recorded, self._url = recorded, url
        self._by_name = {
            **dict.fromkeys(("Viewer", "GetDefaultEntity"), lambda given: {"viewer": _user()}),
            **dict.fromkeys(("Entity", "OrganizationCoreWeaveOrganizationID"), self._entity),
            "ServerFeaturesQuery": lambda given: {"serverInfo": {"features": []}},
            "GetProjects": lambda given: {"models": _page(list(map(_project_node, sorted(self._project_names()))))},
            **dict.fromkeys(_ABOUT_A_PROJECT, self._project),
            "UpsertBucket": self._upsert_run,
            "CreateRunFiles": self._create_run_files,
            "NotifyScriptableRunAlert": self._alert,
            "CreateArtifact": self._create_artifact,
            "CreateArtifactManifest": self._create_manifest,
            "CreateArtifactFiles": self._create_artifact_files,
            "CommitArtifact": self._commit_artifact,
            **dict.fromkeys(("upsertView", "UpsertView2"), self._upsert_view),
            "UpsertSweep": self._upsert_sweep,
            "CreateAgent": self._create_agent,
            "Heartbeat": self._heartbeat,
        }

    def answer(self, query: str, given: Given) -> Node:
        name = operation_name(query)
        if name not in self._by_name:
            raise RefusedError(f"Cannot answer {name!r}", 400)
        return self._by_name[name](given)

    def _entity(self, given: Given) -> Node:
        is_there = ENTITY in (given.get("name"), given.get("entityName"))
        return {"entity": {"available": False, "organization": None} if is_there else None}

    def _project_names(self) -> set[str]:
        return {project for _, project, _ in (*self._recorded.runs, *self._recorded.sweeps)}

    def _project(self, given: Given) -> Node:
        """Everything about a project that the variables choose: a run, runs, a sweep, or an artifact."""
        recorded, (entity, project, name) = self._recorded, _key(given)
        if entity != ENTITY or project not in self._project_names():
            return dict.fromkeys(("project", "model"))
        run, sweep = recorded.runs.get((entity, project, name)), recorded.sweeps.get((entity, project, name))
        artifact = self._latest((entity, project, name.partition(":")[0]))
        runs = [run for run in recorded.runs.values() if run.project == project and _is_chosen(run, given)]
        assert given.get("order") in (None, "+created_at"), "no other order is asked for"
        node = _project_node(project) | {
            "runCount": len(runs),
            "runs": _page([self._run_node(run, given) for run in runs] if "filters" in given else []),
            **dict.fromkeys(("run", "bucket"), None if run is None else self._run_node(run, given)),
            "sweep": None if sweep is None else self._sweep_node(sweep),
            "artifact": None if artifact is None else self._artifact_node(artifact),
            "artifactCollectionMembership": None if artifact is None else self._membership_node(artifact),
        }
        return {"project": node, "model": node}

    def _run_node(self, run: Run, given: Given) -> Node:
        attribute, rows = run.attributes.get, [_strict(row) for row in run.history]
        lines = run.streams.get(HISTORY, [])
        first, last = given.get("minStep", 0), given.get("maxStep", math.inf)
        keys = {"lastStep": rows[-1]["_step"], "keys": {key: {} for row in rows for key in row}} if rows else None
        names = [name for name in run.files if name in (given.get("fileNames") or run.files)]
        about = {
            "projectId": 1,
            "project": _project_node(run.project),
            "user": _user(),
            "displayName": attribute("displayName") or run.name,
            "tags": attribute("tags") or [],
            "group": attribute("groupName"),
            "sweepName": attribute("sweep"),
            "config": attribute("config") or "{}",
            "wandbConfig": '{"t": {}}',
            "systemMetrics": "{}",
            "summaryMetrics": json.dumps(_strict(run.summary)),
            **{key: attribute(key) for key in ("description", "notes", "jobType", "commit")},
        }
        counts = {"historyLineCount": len(lines), "eventsLineCount": 0, "logLineCount": 0, "fileCount": len(run.files)}
        content = {
            "historyKeys": keys,
            "historyTail": json.dumps(lines[-1:]),
            "eventsTail": "[]",
            "events": run.streams.get(EVENTS, []),
            "history": [json.dumps(row) for row in rows if first <= row["_step"] < last],
            "sampledHistory": [_sampled(rows, **json.loads(given["spec"]))] if "spec" in given else [],
            "parquetHistory": {"parquetUrls": [], "liveData": rows},
            "files": _page([self._file_node(run, name) for name in names]),
        }
        state = {"state": run.state, "readOnly": False, "createdAt": run.created_at, "heartbeatAt": run.heartbeat_at}
        return {"id": run.id, "name": run.name, **about, **state, **counts, **content}

    def _upsert_run(self, given: Given) -> Node:
        runs, is_new = self._recorded.runs, False
        run = next((run for run in runs.values() if run.id == given.get("id")), None)
        if run is None:
            key = _entity_of(given, "upsertBucket"), given.get("project") or "uncategorized", given["name"]
            is_new = key not in runs
            run = runs.setdefault(key, Run(*key))
        place = ("id", "entity", "project", "name")
        run.attributes |= {key: value for key, value in given.items() if value is not None and key not in place}
        return {"upsertBucket": {"bucket": self._run_node(run, {}), "inserted": is_new}}

    def _create_run_files(self, given: Given) -> Node:
        run = self._recorded.runs[_key(given)]
        files = [{"name": name, "uploadUrl": self._place_of_file(run, name)} for name in given["files"]]
        return {"createRunFiles": {"runID": run.id, "uploadHeaders": [], "files": files}}

    def _place_of_file(self, run: Run, name: str) -> str:
        return f"{self._url}/storage/runs/{run.entity}/{run.project}/{run.name}/{name}"

    def _file_node(self, run: Run, name: str) -> Node:
        place = dict.fromkeys(("url", "directUrl"), self._place_of_file(run, name))
        about = {"id": f"{run.id}/{name}", "name": name, "sizeBytes": len(run.files[name])}
        return {**about, **place, "mimetype": None, "md5": None, "updatedAt": run.heartbeat_at}

    def _alert(self, given: Given) -> Node:
        self._recorded.runs[_key(given)].alerts.append(SimpleNamespace(**given))
        return {"notifyScriptableRunAlert": {"success": True}}

    def _create_artifact(self, given: Given) -> Node:
        """A new version, or the one that has the same content."""
        asked = given["input"]
        place = asked["entityName"], asked["projectName"], asked["artifactCollectionName"]
        known = self._recorded.artifacts
        same = [artifact for artifact in known if (artifact.place, artifact.digest) == (place, asked["digest"])]
        if not same:
            id, run = f"artifact-{new_name()}", asked.get("runName")
            same = [Artifact(id, place, run, asked["artifactTypeName"], asked["digest"])]
            known += same
        return {"createArtifact": {"artifact": self._artifact_node(same[-1])}}

    def _latest(self, place: tuple[str, str, str]) -> Artifact | None:
        return next((artifact for artifact in reversed(self._recorded.artifacts) if artifact.place == place), None)

    def _artifact_node(self, artifact: Artifact) -> Node:
        latest, (_, project, collection) = self._latest(artifact.place), artifact.place
        sequence = {"__typename": "ArtifactSequence", "name": collection}
        sequence |= {"project": _project_node(project), "latestArtifact": latest and {"id": latest.id}}
        about = {"id": artifact.id, "state": artifact.state, "digest": artifact.digest, "versionIndex": 0}
        more = {"artifactType": {"name": artifact.type}, "size": 0, "fileCount": 0, "tags": [], "createdAt": now()}
        more |= {"ttlDurationSeconds": -1, "ttlIsInherited": False}
        nothing = ("commitHash", "description", "historyStep", "metadata", "updatedAt")
        node = {"__typename": "Artifact", **about, **more, **dict.fromkeys(nothing)}
        return {**node, "artifactSequence": sequence, "artifactCollection": sequence, "aliases": []}

    def _membership_node(self, artifact: Artifact) -> Node:
        node = self._artifact_node(artifact)
        return {**node, "__typename": "ArtifactCollectionMembership", "artifact": node}

    def _upload(self, artifact: str, name: str) -> Node:
        return {"uploadUrl": f"{self._url}/storage/artifacts/{artifact}/{name}", "uploadHeaders": []}

    def _create_manifest(self, given: Given) -> Node:
        id = given["artifactID"]
        manifest = {"id": id, "file": {"id": id, **self._upload(id, "wandb_manifest.json")}}
        return {"createArtifactManifest": {"artifactManifest": manifest}}

    def _create_artifact_files(self, given: Given) -> Node:
        asked = [(file["artifactID"], file["name"]) for file in given["input"]["artifactFiles"]]
        more = {"uploadMultipartUrls": None}
        files = [{"storagePath": name, "artifact": {"id": id}, **self._upload(id, name), **more} for id, name in asked]
        return {"createArtifactFiles": {"files": _page(files)}}

    def _commit_artifact(self, given: Given) -> Node:
        (artifact,) = [known for known in self._recorded.artifacts if known.id == given["artifactID"]]
        artifact.state = "COMMITTED"
        return {"commitArtifact": {"artifact": self._artifact_node(artifact)}}

    def _upsert_view(self, given: Given) -> Node:
        _entity_of(given, "upsertView")
        id, title = f"Vmlldzo{new_name()}=", given["displayName"]
        self._recorded.views.append(SimpleNamespace(id=id, type=given["type"], title=title, spec=given["spec"]))
        about = {key: given[key] for key in ("type", "name", "displayName", "description", "spec")}
        project = _project_node(given["projectName"])
        return {"upsertView": {"inserted": True, "view": {"id": id, "updatedAt": now(), "project": project, **about}}}

    def _upsert_sweep(self, given: Given) -> Node:
        key = _entity_of(given, "upsertSweep"), given.get("projectName") or "uncategorized", new_name()
        sweep = self._recorded.sweeps[key] = Sweep(*key, given["config"])
        return {"upsertSweep": {"sweep": self._sweep_node(sweep), "configValidationWarnings": []}}

    def _sweep_node(self, sweep: Sweep) -> Node:
        config = yaml.safe_load(sweep.config)
        about = {"__typename": "Sweep", "id": f"sweep:{sweep.name}", "name": sweep.name, "state": sweep.state}
        content = {"config": sweep.config, "method": config["method"], "displayName": config.get("name")}
        rest = {"project": _project_node(sweep.project), "runs": _page([]), "runCount": 0, "earlyStopJobRunning": False}
        times = dict.fromkeys(("createdAt", "heartbeatAt", "updatedAt"), sweep.created_at)
        nothing = dict.fromkeys(("description", "bestLoss", "controller", "scheduler", "runCountExpected"))
        return {**about, **content, **rest, **times, **nothing}

    def _create_agent(self, given: Given) -> Node:
        sweep = self._recorded.sweeps[_key(given)]
        sweep.agents.append(f"agent:{new_name()}")
        return {"createAgent": {"agent": {"id": sweep.agents[-1]}}}

    def _heartbeat(self, given: Given) -> Node:
        (sweep,) = [sweep for sweep in self._recorded.sweeps.values() if given["id"] in sweep.agents]
        answer = commands(self._recorded, sweep, given["id"], json.loads(given.get("runState") or "{}"))
        return {"agentHeartbeat": {"agent": {"id": given["id"]}, "commands": json.dumps(answer)}}


def _user() -> Node:
    names = dict.fromkeys(("name", "username", "entity"), ENTITY)
    lists = {key: _page([]) for key in ("apiKeys", "teams")}
    about = {"id": "user:1", "email": f"{ENTITY}@example.com", "admin": False, "flags": "{}", "deletedAt": None}
    return {**about, **names, **lists}


def _project_node(name: str) -> Node:
    entity = {"id": f"entity:{ENTITY}", "name": ENTITY}
    about = {"__typename": "Project", "id": f"project:{ENTITY}/{name}", "internalId": "1", "name": name}
    more = {"entityName": ENTITY, "createdAt": now(), "isBenchmark": False, "readOnly": False, "user": _user()}
    return {**about, **more, "entity": entity}


def _page(nodes: Sequence[Node]) -> Node:
    """All nodes on a page."""
    edges = [{"node": node, "cursor": str(number)} for number, node in enumerate(nodes, start=1)]
    end = {"__typename": "PageInfo", "endCursor": str(len(nodes)), "hasNextPage": False}
    return {"edges": edges, "pageInfo": end}


def _key(given: Given) -> tuple[str, str, str]:
    """The place that an operation is about, whatever its variables are called."""
    names = (("entity", "entityName"), ("project", "projectName"), ("runName", "run", "sweep", "name"))
    entity, project, name = (next(filter(None, map(given.get, keys)), "") for keys in names)
    return entity or ENTITY, project, name


def _entity_of(given: Given, operation: str) -> str:
    if (entity := _key(given)[0]) != ENTITY:
        raise RefusedError(f"entity {entity} not found during {operation}")
    return entity


def _is_chosen(run: Run, given: Given) -> bool:
    """Return True if the filters of a `Selection` choose the run."""
    columns = {"jobType": "jobType", "group": "groupName", "sweep": "sweep"}
    conditions = json.loads(given.get("filters") or "{}").get("$and", [])
    wanted = [(run.attributes.get(columns[key]), value) for one in conditions for key, value in one.items()]
    return all(_fits(*pair) for pair in wanted)


def _fits(value: Any, wanted: Any) -> bool:
    match wanted:
        case {"$ne": other}:
            return bool(value != other)
        case {"$in": names}:
            return value in names
    return bool(value == wanted)


def _strict(value: Any) -> Any:
    """Numbers that JSON does not have, as W&B writes them: "NaN", "Infinity"."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return json.loads(f'"{json.dumps(value)}"')
    return value


def _sampled(rows: list[Node], keys: list[str], **_: Any) -> list[Node]:
    return [{key: row[key] for key in keys} for row in rows if all(key in row for key in keys)]
