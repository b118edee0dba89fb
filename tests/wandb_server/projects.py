"""Projects, their views and their user, as the W&B client queries them."""

import json
from typing import Any

from .artifacts import artifact_node, find_artifact, membership_node
from .filters import matches, ordered
from .graphql import GraphQLError, Node, connection
from .recorded import Recorded, Run, View, now
from .runs import run_node
from .sweeps import sweep_node


class Projects:
    """The projects of ``entity``, the only user; a project comes into being with its first run or sweep."""

    def __init__(self, recorded: Recorded, url: str, entity: str) -> None:
        self._recorded, self._url, self._entity = recorded, url, entity

    def fields(self) -> Node:
        return {
            "viewer": self._viewer,
            "serverInfo": {"__typename": "ServerInfo", "features": []},
            "entity": self._named,
            "project": self._project,
            "model": self._project,
            "models": self._all,
            "upsertModel": lambda input: {"project": None, "model": None, "inserted": False},
            "upsertView": self._upsert_view,
        }

    def _upsert_view(self, input: dict[str, Any]) -> Node:
        entity, project = input["entityName"], input["projectName"]
        if entity != self._entity:
            raise GraphQLError(f"entity {entity} not found during upsertView", 404)
        view = next((view for view in self._recorded.views if view.id == input.get("id")), None)
        if view is None:
            id = f"Vmlldzo{self._recorded.new_name()}="
            view = View(id, entity, project, input["type"], input["name"], input["displayName"], input["spec"])
            self._recorded.views.append(view)
        view.title, view.spec = input["displayName"], input["spec"]
        return {"view": _view_node(view), "inserted": True}

    def _named(self, name: str) -> Node | None:
        about = {"__typename": "Entity", "available": False, "xxhashDigestsEnabled": False, "organization": None}
        return about if name == self._entity else None

    def _viewer(self) -> Node:
        return {
            "__typename": "User",
            "id": "user:1",
            **dict.fromkeys(("name", "username", "entity"), self._entity),
            "email": f"{self._entity}@example.com",
            "admin": False,
            "flags": "{}",
            "deletedAt": None,
            "apiKeys": connection([]),
            "teams": connection([]),
        }

    def _all(self, entityName: str | None = None, after: str | None = None, first: int = 50) -> Node:  # noqa: N803
        entity = entityName or self._entity
        nodes = [self._node(entity, name) for name in sorted(self._recorded.projects(entity))]
        return connection(nodes, after, first)

    def _project(self, name: str | None = None, entityName: str | None = None) -> Node | None:  # noqa: N803
        entity = entityName or self._entity
        return self._node(entity, name) if name in self._recorded.projects(entity) else None

    def _node(self, entity: str, name: str) -> Node:
        recorded = self._recorded

        def runs(filters: str | None = None, order: str | None = None) -> list[Run]:
            mine = [run for run in recorded.runs.values() if (run.entity, run.project) == (entity, name)]
            return ordered([run for run in mine if matches(run, json.loads(filters or "{}"))], order)

        def pages(after: str | None = None, first: int = 50, **which: Any) -> Node:
            return connection([run_node(recorded, run, self._url) for run in runs(**which)], after, first)

        def run(name: str, **_: Any) -> Node | None:
            found = recorded.runs.get((entity, project, name))
            return None if found is None else run_node(recorded, found, self._url)

        def sweeps(after: str | None = None, first: int = 50, filters: str | None = None) -> Node:
            mine = [sweep for key, sweep in recorded.sweeps.items() if key[:2] == (entity, name)]
            return connection([sweep_node(recorded, sweep, self._url) for sweep in mine], after, first)

        def sweep(sweepName: str) -> Node | None:  # noqa: N803
            found = recorded.sweeps.get((entity, project, sweepName))
            return None if found is None else sweep_node(recorded, found, self._url)

        def views(viewType: str, viewName: str | None = None) -> Node:  # noqa: N803
            mine = [
                view for view in recorded.views if (view.entity, view.project, view.type) == (entity, project, viewType)
            ]
            return connection([_view_node(view) for view in mine if viewName in (None, view.name)])

        def artifact(name: str) -> Node | None:
            found = find_artifact(recorded, entity, project, name)
            return None if found is None else artifact_node(recorded, found, self._url)

        def membership(name: str) -> Node | None:
            found = find_artifact(recorded, entity, project, name)
            return None if found is None else membership_node(recorded, found, self._url)

        project = name
        return {
            "__typename": "Project",
            "id": f"project:{entity}/{name}",
            "internalId": "1",
            "name": name,
            "entityName": entity,
            "entity": {"__typename": "Entity", "id": f"entity:{entity}", "name": entity},
            "createdAt": now(),
            "isBenchmark": False,
            "readOnly": False,
            "user": self._viewer,
            "runCount": lambda filters=None: len(runs(filters)),
            "runs": pages,
            "run": run,
            "bucket": run,
            "totalSweeps": lambda: sweeps()["totalCount"],
            "sweeps": sweeps,
            "sweep": sweep,
            "allViews": views,
            "artifact": artifact,
            "artifactCollectionMembership": membership,
            "artifactCollection": lambda name: {
                "__typename": "ArtifactSequence",
                "artifactMembership": lambda aliasName: membership(f"{name}:{aliasName}"),  # noqa: N803
            },
        }


def _view_node(view: View) -> Node:
    return {
        "__typename": "View",
        **{key: getattr(view, key) for key in ("id", "type", "name", "spec")},
        "displayName": view.title,
        "description": "",
        "project": {"__typename": "Project", "id": "1", "name": view.project, "entityName": view.entity},
        "updatedAt": now(),
    }
