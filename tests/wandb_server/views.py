"""Views, which are saved workspaces and reports, as they are saved and found."""

from typing import Any

from .graphql import GraphQLError, Node
from .recorded import Recorded, View, now


class Views:
    """What clients do to views of ``entity``."""

    def __init__(self, recorded: Recorded, url: str, entity: str) -> None:
        self._recorded, self._entity = recorded, entity

    def fields(self) -> Node:
        return {"upsertView": self._upsert}

    def _upsert(self, input: dict[str, Any]) -> Node:
        entity, project = input["entityName"], input["projectName"]
        if entity != self._entity:
            raise GraphQLError(f"entity {entity} not found during upsertView", 404)
        view = next((view for view in self._recorded.views if view.id == input.get("id")), None)
        if view is None:
            id = f"Vmlldzo{self._recorded.new_name()}="
            view = View(id, entity, project, input["type"], input["name"], input["displayName"], input["spec"])
            self._recorded.views.append(view)
        view.title, view.spec = input["displayName"], input["spec"]
        return {"view": view_node(view), "inserted": True}


def view_node(view: View) -> Node:
    return {
        "__typename": "View",
        "id": view.id,
        "type": view.type,
        "name": view.name,
        "displayName": view.title,
        "description": "",
        "project": {"__typename": "Project", "id": "1", "name": view.project, "entityName": view.entity},
        "spec": view.spec,
        "updatedAt": now(),
    }
