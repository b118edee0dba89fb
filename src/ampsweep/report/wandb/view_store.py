"""Views, as a W&B server calls workspaces and reports: found there, and saved, with the runs that they show.

Neither wandb nor wandb-workspaces has a public call that finds a page by its name, or one that saves a page without
losing what it does not know of it: hence GraphQL.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from ampsweep.report.wandb.view_merge import Json
from ampsweep.tracking.wandb.api import WandbError
from ampsweep.tracking.wandb.core import execute_graphql
from ampsweep.tracking.wandb.selection import COMPARISON, Selection

if TYPE_CHECKING:
    import wandb

Kind = Literal["project-view", "runs"]
"""As W&B calls the types of a saved workspace and of a report."""
_FIND: Final = """
query FindView($entity: String!, $project: String!, $kind: String!, $name: String!) {
    project(name: $project, entityName: $entity) {
        allViews(viewType: $kind, viewName: $name) { edges { node { id displayName spec } } }
    }
}
"""
_SAVE: Final = """
mutation SaveView(
    $id: ID, $entity: String, $project: String, $kind: String, $name: String, $title: String, $spec: String
) {
    upsertView(input: {
        id: $id, entityName: $entity, projectName: $project, type: $kind, name: $name, displayName: $title, spec: $spec,
        createdUsing: WANDB_SDK
    }) { view { id } }
}
"""


@dataclass(frozen=True)
class View:
    """A page that exists."""

    id: str
    title: str
    spec: Json


@dataclass(frozen=True)
class Views:
    """The pages about a selection of runs: one of each kind, found again by a name that follows from the selection."""

    api: "wandb.Api"
    selection: Selection

    def name(self, kind: Kind) -> str:
        """11 characters, as long as the names that W&B gives, in the form that addresses of workspaces are made of."""
        return f"nw-{self._id}-v" if kind == "project-view" else self._id

    @property
    def _id(self) -> str:
        return hashlib.sha256(f"ampsweep {self.selection}".encode()).hexdigest()[:11]

    def find(self, kind: Kind) -> View | None:
        """The saved page, if there is one. Raises `lost_errors`, and WandbError where there is no such project."""
        answer = self._ask(_FIND, kind=kind, name=self.name(kind))
        if answer["project"] is None:
            raise WandbError(f"{self.selection}: no such project, or not for this API key")
        nodes = [edge["node"] for edge in answer["project"]["allViews"]["edges"]]
        return View(nodes[0]["id"], nodes[0]["displayName"], json.loads(nodes[0]["spec"])) if nodes else None

    def save(self, kind: Kind, spec: Json, before: View | None) -> View:
        """Save a page, over the one ``before`` if there is one. Raises `lost_errors`."""
        known = {"title": title(self.selection)} if before is None else {"id": before.id, "title": before.title}
        answer = self._ask(_SAVE, kind=kind, name=self.name(kind), spec=json.dumps(spec), **known)
        return View(answer["upsertView"]["view"]["id"], known["title"], spec)

    def url(self, kind: Kind, view: View) -> str:
        """The address where people find the page."""
        import wandb

        place = f"{wandb.setup().settings.app_url.rstrip('/')}/{quote(self.selection.path)}"
        if kind == "runs":
            return f"{place}/reports/{quote(view.title.replace(' ', '-'), safe='')}--{view.id.rstrip('=')}"
        return f"{place}?nw={self._id}"

    def _ask(self, query: str, **variables: str) -> dict[str, Any]:
        place = {"entity": self.selection.entity, "project": self.selection.project}
        return execute_graphql(self.api, query, **place, **variables)


def title(selection: Selection) -> str:
    """A name for people; W&B takes neither emojis nor signs such as a plus."""
    runs = ", ".join(selection.groups) or selection.sweep or selection.project
    return re.sub(r"[^\w .,:/()-]", "_", f"Precision of {runs}")[:120]


def run_filter(selection: Selection) -> str:
    """The runs, those that hold a comparison left out, in wandb-workspaces' own language of filters."""
    wanted = [f'Metric("JobType") != {_literal(COMPARISON)}']
    if selection.sweep is not None:
        wanted.append(f'Metric("Sweep") == {_literal(selection.sweep)}')
    if selection.groups:
        wanted.append(f'Metric("Group") in [{", ".join(map(_literal, selection.groups))}]')
    return " and ".join(wanted)


def _literal(text: str) -> str:
    """A string with every sign escaped: wandb-workspaces 0.4 replaces `=`, `<` and `>` even within strings."""
    return '"' + "".join(sign if sign.isascii() and sign.isalnum() else f"\\U{ord(sign):08x}" for sign in text) + '"'
