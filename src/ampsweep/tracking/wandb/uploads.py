"""Files and artifacts of a run: those that it uploads, and those of them that its server lacks."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ampsweep.record import FILE_NAME, RunRecord
from ampsweep.tracking.wandb.api import ASK_S
from ampsweep.tracking.wandb.content import RECORD_NAME, artifact_files, artifact_name
from ampsweep.tracking.wandb.core import CORE_SILENT, CoreLimit, execute_graphql
from ampsweep.tracking.wandb.library import lost_errors

if TYPE_CHECKING:
    import wandb
    from wandb.apis.public import File, Run

METADATA: Final = "wandb-metadata.json"
_OF_MACHINE: Final = (METADATA, "requirements.txt")
_MOVING_S: Final = 60.0
_OF_SENDING: Final = ("wandb", "digest")
"""Parts of a record that change when it is sent: what it says of W&B, and the digest of the whole."""
_ARTIFACT: Final = """
query Artifact($entity: String!, $project: String!, $name: String!) {
    project(name: $project, entityName: $entity) { artifact(name: $name) { state } }
}
"""


def machine_files(directory: Path) -> dict[str, Path]:
    """W&B's files about the machine that trained, as it left them in the run's directory."""
    return {path.name: path for path in sorted(directory.glob("wandb/*run-*/files/*")) if path.name in _OF_MACHINE}


def lacking(path: str, record: RunRecord, directory: Path, summary: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of what the run in ``directory`` uploads and the server lacks, or has of an earlier end of the run.

    The run is at ``path``, [ENTITY/]PROJECT/ID, with this ``summary``, which names the files of its tables. Of
    artifacts any version will do: a checkpoint can be too large to be compared. Raises `lost_errors`.
    """
    import wandb

    wanted = [RECORD_NAME, *machine_files(directory), *_tables(summary)]
    with CoreLimit(_MOVING_S, CORE_SILENT):
        api = wandb.Api(timeout=ASK_S)
        run = api.run(path)
        files = {file.name: file for file in run.files(wanted)}
        there = {name for name, file in files.items() if name != RECORD_NAME or _is_of(file, record)}
        artifacts = [artifact_name(kind, run.id) for kind in artifact_files(record, directory)]
        there |= {name for name in artifacts if _is_committed(api, run, name)}
        return tuple(name for name in (*wanted, *artifacts) if name not in there)


def _tables(summary: Mapping[str, Any]) -> list[str]:
    return [
        value["path"]
        for value in summary.values()
        if isinstance(value, Mapping) and str(value.get("_type")).endswith("-file") and "path" in value
    ]


def _is_committed(api: "wandb.Api", run: "Run", name: str) -> bool:
    """Tell whether an artifact's file has arrived; wandb's public API has no artifacts of which it has not."""
    answer = execute_graphql(api, _ARTIFACT, entity=run.entity, project=run.project, name=f"{name}:latest")
    found = (answer.get("project") or {}).get("artifact") or {}
    return bool(found.get("state") == "COMMITTED")


def _is_of(file: "File", record: RunRecord) -> bool:
    """Tell whether the file holds this record."""
    with tempfile.TemporaryDirectory() as here:
        try:
            file.download(root=here, replace=True).close()
        except lost_errors():  # storage that does not give it either
            return False
        content = (Path(here) / RECORD_NAME).read_bytes()
        record.write(Path(here))
        return _facts(content) == _facts((Path(here) / FILE_NAME).read_bytes())


def _facts(content: bytes) -> dict[str, Any] | None:
    try:
        facts = json.loads(content)
    except ValueError:
        return None
    return {name: fact for name, fact in facts.items() if name not in _OF_SENDING} if isinstance(facts, dict) else None
