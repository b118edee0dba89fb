"""The content of a run on W&B besides its rows: config, summary, alerts, and files."""

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.metrics import MEASURED, MEDIA
from ampsweep.records import LAST, MULTIRUN_NAME, Row, RunRecord, kept_checkpoint
from ampsweep.redaction import hidden

if TYPE_CHECKING:
    import wandb

RECORD_NAME: Final = "record.json"  # unlike the name on disk, because W&B keeps a copy in its own folder there

_IN_SUMMARY: Final = (
    *("status", "error", "oom", "cut_short", "started_at", "ended_at"),
    *("batch_search", "proof", "memory", "prediction", "contamination"),
)


def run_name(record: RunRecord) -> str:
    identity = record.identity
    batch = "" if identity.batch_size is None else f"-b{identity.batch_size}"
    return f"{record.arm}-{identity.model}{batch}-s{identity.seed}"


def tracking_of(record: RunRecord) -> TrackingConfig:
    return TrackingConfig(**hidden(record.config.get("tracking", {}), beside=record.config))


def run_config(record: RunRecord) -> dict[str, Any]:
    """The run's config in W&B: identity, arm, hashes, dtypes at the top, then `environment` and the rest of `config`. A
    sweep writes its own parameters (`precision`, `model`) over top-level keys of the same name."""
    facts = hidden(record.as_json())
    beside = ("arm", "pair_key", "config_hash", "environment")
    dtypes = {f"{kind}_dtype": dtype for kind, dtype in record.dtypes.as_json().items()}
    top = {**facts["identity"], **dtypes, **{key: facts[key] for key in beside}}
    return {**top, "config": _without(top.keys(), facts["config"])}


def _without(names: Container[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config, at any depth, whose last name is not among ``names``."""
    groups = {key: _without(names, value) for key, value in config.items() if isinstance(value, Mapping)}
    values = {key: value for key, value in config.items() if key not in groups and key not in names}
    return values | {key: group for key, group in groups.items() if group}


def alerts(record: RunRecord) -> dict[str, str]:
    """Alerts, by title, about a run that went wrong; none where `tracking.alerts` is off."""
    if not tracking_of(record).alerts:
        return {}
    found, name, error = {}, run_name(record), hidden(record.as_json())["error"]
    if record.status == "oom":
        found["Out of memory"] = f"{name}: {error}"
    elif record.status == "diverged":
        found["Scale collapsed" if "scale collapsed" in (error or "") else "Diverged"] = f"{name}: {error}"
    contamination = record.contamination
    if contamination.verdict == "contaminated":
        found["Contaminated"] = f"{name}, its speed does not count: {'; '.join(contamination.reasons or ())}"
    return found


def send_record(run: "wandb.Run", record: RunRecord) -> None:
    """Send the current record, the source of `ampsweep report wandb://...`."""
    folder = Path(run.dir)
    record.write(folder, RECORD_NAME)
    run.save(folder / RECORD_NAME, base_path=folder, policy="now")


def send_end(run: "wandb.Run", record: RunRecord, directory: Path) -> None:
    """Send record, summary, alerts and, with `tracking.checkpoints`, the newest checkpoint or weights as an artifact.
    Measured values that are in rows only, or left by an earlier end of the run, are deleted from the summary."""
    import wandb

    send_record(run, record)
    facts = hidden(record.as_json())
    found = record.summary | {key: facts[key] for key in _IN_SUMMARY if facts[key]}
    summary: Any = run.summary
    for name in [*summary.keys()]:
        if name not in found and (name.startswith(MEASURED) or name in _IN_SUMMARY):
            del summary[name]
    summary.update(found)
    if not (directory.parent / MULTIRUN_NAME).is_file():  # else the sweep's comparison sends the alert
        for title, text in alerts(record).items():
            run.alert(title, text, level="WARN")
    if (path := kept_artifact(record, directory)) is not None:
        metadata = {"arm": record.arm, "config_hash": record.config_hash, "status": record.status}
        artifact = wandb.Artifact(artifact_name(run.id), type="checkpoint", metadata=metadata)
        add = artifact.add_dir if path.is_dir() else artifact.add_file
        add(str(path), policy="immutable")  # not copied: it can be large, and never changes
        run.log_artifact(artifact)


def as_sent(row: Row, directory: Path) -> Row:
    """The row with its images and tables as W&B's own; a file that is gone is left out."""
    sent = {key: value for key, value in row.items() if not key.startswith(MEDIA)}
    for key in row.keys() - sent.keys():
        import wandb

        paths = [path for name in row[key] if (path := directory / name).is_file()]
        if paths and paths[0].suffix == ".json":
            sent[key] = wandb.Table(**json.loads(paths[0].read_bytes()))
        elif paths:
            sent[key] = [wandb.Image(str(path)) for path in paths]
    return sent


def artifact_name(id: str) -> str:
    return f"checkpoint-{id}"


def kept_artifact(record: RunRecord, directory: Path) -> Path | None:
    """The checkpoint (file or directory) or else the kept weights to send as an artifact, if the run wants that."""
    if not tracking_of(record).checkpoints:
        return None
    weights = (directory / kept.file for kept in record.weights)  # the best first, if both are kept
    return kept_checkpoint(directory, LAST) or next(filter(Path.is_file, weights), None)
