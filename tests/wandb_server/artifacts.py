"""Artifacts, as the W&B client creates and reads them."""

from typing import Any

from .graphql import GraphQLError, Node, connection
from .recorded import Artifact, Recorded

MANIFEST = "wandb_manifest.json"


class Artifacts:
    """The mutations and queries of artifacts of `entity`."""

    def __init__(self, recorded: Recorded, url: str, entity: str) -> None:
        self._recorded, self._url, self._entity = recorded, url, entity

    def fields(self) -> Node:
        return {
            "artifact": lambda id: artifact_node(self._recorded, self._by_id(id), self._url),
            "clientIDMapping": self._by_client_id,
            "createArtifact": self._create,
            "createArtifactManifest": lambda input: self._manifest(input["artifactID"]),
            "updateArtifactManifest": lambda input: self._manifest(input["artifactManifestID"]),
            "createArtifactFiles": self._create_files,
            "commitArtifact": self._commit,
            "useArtifact": lambda input: {"artifact": {"id": input["artifactID"]}},
        }

    def _create(self, input: dict[str, Any]) -> Node:
        """A new version, or the latest where its content is the same."""
        place = input["entityName"], input["projectName"], input["artifactCollectionName"]
        versions = [known for known in self._recorded.artifacts if known.place == place]
        same = [known for known in versions if known.fields["digest"] == input["digest"]]
        if not same:
            id = f"artifact-{self._recorded.new_name()}"
            run, type = input.get("runName"), input["artifactTypeName"]
            same = [Artifact(id, place[0], place[1], run, type, place[2], len(versions), input)]
            self._recorded.artifacts += same
        for alias in input.get("aliases") or []:
            for artifact in versions:
                artifact.aliases = [name for name in artifact.aliases if name != alias["alias"]]
            same[-1].aliases.append(alias["alias"])
        return {"artifact": artifact_node(self._recorded, same[-1], self._url)}

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
        found = [known.id for known in self._recorded.artifacts if known.fields.get("clientID") == clientID]
        return {"serverID": found[0]} if found else None


def find_artifact(recorded: Recorded, entity: str, project: str, name: str) -> Artifact | None:
    """The artifact that `name`, as `collection:version` or `collection:alias`, means."""
    collection, _, version = name.partition(":")
    for artifact in reversed(recorded.artifacts):
        is_version = version in ("", f"v{artifact.version}", *artifact.aliases)
        if artifact.place == (entity, project, collection) and is_version:
            return artifact
    return None


def artifact_node(recorded: Recorded, artifact: Artifact, url: str) -> Node:
    """Everything that is asked about an artifact, from what was recorded."""
    files = {name: content for name, content in artifact.files.items() if name != MANIFEST}
    entity = {"__typename": "Entity", "name": artifact.entity}
    id = f"project:{artifact.entity}/{artifact.project}"
    project = {"__typename": "Project", "id": id, "internalId": "1", "name": artifact.project, "entity": entity}

    def latest() -> Node | None:
        found = find_artifact(recorded, *artifact.place)
        return None if found is None else {"id": found.id}

    def file(name: str) -> Node:
        return {"__typename": "File", "name": name, "directUrl": f"{url}/storage/artifacts/{artifact.id}/{name}"}

    collection = {
        "__typename": "ArtifactSequence",
        "name": artifact.collection,
        "project": project,
        "latestArtifact": latest,
        "digestAlgorithm": None,
    }
    alias = {"__typename": "ArtifactAlias", "artifactCollection": collection}
    return {
        "__typename": "Artifact",
        "id": artifact.id,
        "artifactSequence": collection,
        "artifactCollection": collection,
        "versionIndex": artifact.version,
        "artifactType": {"__typename": "ArtifactType", "name": artifact.type},
        **{key: artifact.fields.get(key) for key in ("description", "metadata", "historyStep", "digestAlgorithm")},
        "ttlDurationSeconds": -1,
        "ttlIsInherited": False,
        "tags": [],
        "state": artifact.state,
        "size": sum(map(len, files.values())),
        "digest": artifact.fields["digest"],
        "commitHash": artifact.id,
        "fileCount": len(files),
        "createdAt": artifact.created_at,
        "updatedAt": artifact.created_at,
        "aliases": [{**alias, "id": f"{artifact.id}/{name}", "alias": name} for name in artifact.aliases],
        "currentManifest": {"file": file(MANIFEST)},
        "files": lambda after=None, first=None, **_: connection([*map(file, files)], after, first),
        "filesByManifestEntries": lambda entries, **_: connection(
            [file(entry["name"]) for entry in entries if entry["name"] in files]
        ),
    }


def membership_node(recorded: Recorded, artifact: Artifact, url: str) -> Node:
    """A version's place in the only collection it is in."""
    node = artifact_node(recorded, artifact, url)
    return dict(node) | {"__typename": "ArtifactCollectionMembership", "artifact": node}
