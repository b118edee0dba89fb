"""Artifacts, as the W&B client creates and reads them."""

from typing import Any

from .graphql import GraphQLError, Node, connection
from .recorded import Artifact, Recorded

MANIFEST = "wandb_manifest.json"


class Artifacts:
    """What clients do to artifacts of ``entity``."""

    def __init__(self, recorded: Recorded, url: str, entity: str) -> None:
        self._recorded, self._url, self._entity = recorded, url, entity

    def fields(self) -> Node:
        return {
            "artifact": lambda id: artifact_node(self._recorded, self._by_id(id), self._url),
            "clientIDMapping": self._by_client_id,
            "createArtifact": self._create,
            "createArtifactManifest": self._create_manifest,
            "updateArtifactManifest": lambda input: self._manifest(input["artifactManifestID"]),
            "createArtifactFiles": self._create_files,
            "commitArtifact": self._commit,
            "useArtifact": lambda input: {"artifact": {"id": input["artifactID"]}},
        }

    def _create(self, input: dict[str, Any]) -> Node:
        """A new version, or the latest where its content is the same."""
        versions = [
            artifact
            for artifact in self._recorded.artifacts
            if (artifact.entity, artifact.project) == (input["entityName"], input["projectName"])
            and artifact.collection == input["artifactCollectionName"]
        ]
        same = [artifact for artifact in versions if artifact.fields["digest"] == input["digest"]]
        if not same:
            artifact = Artifact(
                id=f"artifact-{self._recorded.new_name()}",
                entity=input["entityName"],
                project=input["projectName"],
                run=input.get("runName"),
                type=input["artifactTypeName"],
                collection=input["artifactCollectionName"],
                version=len(versions),
                fields=input,
            )
            self._recorded.artifacts.append(artifact)
            same = [artifact]
        for alias in input.get("aliases") or []:
            for artifact in versions:
                artifact.aliases = [name for name in artifact.aliases if name != alias["alias"]]
            same[-1].aliases.append(alias["alias"])
        return {"artifact": artifact_node(self._recorded, same[-1], self._url)}

    def _create_manifest(self, input: dict[str, Any]) -> Node:
        return self._manifest(input["artifactID"])

    def _manifest(self, id: str) -> Node:
        url = f"{self._url}/storage/artifacts/{id}/{MANIFEST}"
        return {"artifactManifest": {"id": id, "file": {"id": id, "uploadUrl": url, "uploadHeaders": []}}}

    def _create_files(self, input: dict[str, Any]) -> Node:
        files = [
            {
                "name": file["name"],
                "storagePath": file["name"],
                "uploadUrl": f"{self._url}/storage/artifacts/{file['artifactID']}/{file['name']}",
                "uploadHeaders": [],
                "uploadMultipartUrls": None,
                "artifact": {"id": file["artifactID"]},
            }
            for file in input["artifactFiles"]
        ]
        return {"files": connection(files)}

    def _commit(self, input: dict[str, Any]) -> Node:
        artifact = self._by_id(input["artifactID"])
        artifact.state = "COMMITTED"
        return {"artifact": artifact_node(self._recorded, artifact, self._url)}

    def _by_id(self, id: str) -> Artifact:
        for artifact in self._recorded.artifacts:
            if artifact.id == id:
                return artifact
        raise GraphQLError(f"artifact {id} not found", 404)

    def _by_client_id(self, clientID: str) -> Node | None:  # noqa: N803
        found = [one.id for one in self._recorded.artifacts if one.fields.get("clientID") == clientID]
        return {"serverID": found[0]} if found else None


def find_artifact(recorded: Recorded, entity: str, project: str, name: str) -> Artifact | None:
    """The artifact that ``name``, as `collection:version` or `collection:alias`, means."""
    collection, _, version = name.partition(":")
    for artifact in reversed(recorded.artifacts):
        if (artifact.entity, artifact.project, artifact.collection) == (entity, project, collection) and (
            version in ("", f"v{artifact.version}", *artifact.aliases)
        ):
            return artifact
    return None


def artifact_node(recorded: Recorded, artifact: Artifact, url: str) -> Node:
    """Everything that is asked about an artifact, from what was recorded."""
    files = {name: content for name, content in artifact.files.items() if name != MANIFEST}
    project = {
        "__typename": "Project",
        "id": f"project:{artifact.entity}/{artifact.project}",
        "internalId": "1",
        "name": artifact.project,
        "entity": {"__typename": "Entity", "name": artifact.entity},
    }

    def latest() -> Node | None:
        found = find_artifact(recorded, artifact.entity, artifact.project, artifact.collection)
        return None if found is None else {"id": found.id}

    def file(name: str) -> Node:
        return {"__typename": "File", "name": name, "directUrl": f"{url}/storage/artifacts/{artifact.id}/{name}"}

    def pages(after: str | None = None, first: int | None = None, **_: Any) -> Node:
        return connection([file(name) for name in files], after, first)

    collection = {
        "__typename": "ArtifactSequence",
        "name": artifact.collection,
        "project": project,
        "latestArtifact": latest,
        "digestAlgorithm": None,
    }
    aliases = [
        {
            "__typename": "ArtifactAlias",
            "id": f"{artifact.id}/{alias}",
            "alias": alias,
            "artifactCollection": collection,
        }
        for alias in artifact.aliases
    ]
    return {
        "__typename": "Artifact",
        "id": artifact.id,
        "artifactSequence": collection,
        "artifactCollection": collection,
        "versionIndex": artifact.version,
        "artifactType": {"__typename": "ArtifactType", "name": artifact.type},
        "description": artifact.fields.get("description"),
        "metadata": artifact.fields.get("metadata"),
        "ttlDurationSeconds": -1,
        "ttlIsInherited": False,
        "tags": [],
        "historyStep": artifact.fields.get("historyStep"),
        "state": artifact.state,
        "size": sum(map(len, files.values())),
        "digest": artifact.fields["digest"],
        "digestAlgorithm": artifact.fields.get("digestAlgorithm"),
        "commitHash": artifact.id,
        "fileCount": len(files),
        "createdAt": artifact.created_at,
        "updatedAt": artifact.created_at,
        "aliases": aliases,
        "currentManifest": {"file": file(MANIFEST)},
        "files": pages,
        "filesByManifestEntries": lambda entries, **_: connection(
            [file(entry["name"]) for entry in entries if entry["name"] in files]
        ),
    }


def membership_node(recorded: Recorded, artifact: Artifact, url: str) -> Node:
    """A version's place in the only collection it is in."""
    node = artifact_node(recorded, artifact, url)
    return dict(node) | {"__typename": "ArtifactCollectionMembership", "artifact": node}
