"""The content of a run on W&B besides its rows: from its record, and from the files that it left."""

import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from ampsweep.config.schema import TrackingConfig
from ampsweep.memory_categories import MEMORY_CATEGORIES
from ampsweep.metrics import MEASURED, METRICS, STEP
from ampsweep.record import FILE_NAME, LAST, SNAPSHOT_NAME, RunRecord, kept_checkpoint, read_history
from ampsweep.redaction import hidden

if TYPE_CHECKING:
    import wandb

from ampsweep.record.files import RecordError
from ampsweep.record.numerics import TENSOR_KINDS, Magnitudes, RunNumerics

RECORD_NAME: Final = "record.json"
"""The run's file in W&B that holds its record; not called as on disk, where W&B's own folder has a copy of it."""

_IN_SUMMARY: Final = (
    *("status", "error", "oom", "cut_short", "started_at", "ended_at"),
    *("batch_search", "proof", "memory", "prediction", "contamination"),
)

_OF_RANK: Final = (
    *("rank", "host", "device", "device_name", "peak_allocated_gib", "peak_reserved_gib", "process_gib"),
    *("step_ms", "data_wait_ms", "communication_ms", "peak_bytes"),
    *(f"{category}_bytes" for category in MEMORY_CATEGORIES),
)
"""Columns of the table of ranks, as in the record; then the peak's bytes by category."""
_MAX_BINS: Final = 512
"""The most that a histogram on W&B may have."""
_COLUMNS: Final = (
    *("kind", "layer", "dtype", "steps", "elements", "zeros", "nonfinite", "max_abs"),
    *("lowest_exponent", "highest_exponent", "unchanged_pct"),
)


def run_name(record: RunRecord) -> str:
    """The run's name in W&B, such as `amp_bf16-gpt_tiny-b16-s0`."""
    identity = record.identity
    return f"{record.arm}-{identity.model}-b{identity.batch_size}-s{identity.seed}"


def tracking_of(record: RunRecord) -> TrackingConfig:
    return TrackingConfig(**hidden(record.config.get("tracking", {}), beside=record.config))


def run_config(record: RunRecord) -> dict[str, Any]:
    """The identity, flat, with arm, hashes and the step's dtypes; as one value each the environment, and what the
    resolved config has beside all that.

    A sweep writes its own parameters (`precision`, `model`) at the top, over whatever has their names.
    """
    facts = hidden(record.as_json())
    beside = ("arm", "pair_key", "config_hash", "environment")
    dtypes = {f"{kind}_dtype": dtype for kind, dtype in record.dtypes.as_json().items()}
    told = {**facts["identity"], **dtypes, **{key: facts[key] for key in beside}}
    return {**told, "config": _without(told.keys(), facts["config"])}


def _without(names: Container[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config whose own names, without those of their groups, are not among these."""
    groups = {key: _without(names, value) for key, value in config.items() if isinstance(value, Mapping)}
    values = {key: value for key, value in config.items() if key not in groups and key not in names}
    return values | {key: group for key, group in groups.items() if group}


def config_key(record: RunRecord, key: str) -> str:
    """The place in W&B's config of a key such as `optimizer.lr`; see `run_config`."""
    name = key.rpartition(".")[2]
    return name if name in vars(record.identity) else f"config.{key}"


def define_metrics(run: "wandb.Run") -> None:
    """Give every metric our step axis; the summary has the last value of each, until `run_end` tells the figures."""
    run.define_metric(STEP, hidden=True)
    for key in METRICS:
        run.define_metric(key, step_metric=STEP)


@dataclass(frozen=True)
class RunEnd:
    """The facts about a run's end for W&B; gathering them takes time on this machine, none of the server's."""

    summary: dict[str, Any]
    outdated: frozenset[str]
    """Keys that may be in W&B's summary but are no figures of the run."""
    alerts: dict[str, str]
    """Messages that people who watch the project should get at once, by their titles."""
    artifacts: "tuple[wandb.Artifact, ...]"


def run_end(id: str, record: RunRecord, directory: Path) -> RunEnd:
    """The end of the run ``id`` in ``directory``, as its record and history are now.

    The summary has status, figures, proof, and as tables memory and dtypes.
    """
    facts = hidden(record.as_json())
    summary = record.summary | {key: facts[key] for key in _IN_SUMMARY if facts[key]} | _tables(facts)
    # Rows alone make no figure of the run, and what an earlier end of it has left there may not be so any more.
    measured = {key for row in read_history(directory) for key in row if key.startswith(MEASURED)}
    outdated = frozenset({*measured, *_IN_SUMMARY} - summary.keys())
    is_alone = not (directory.parent / "multirun.yaml").is_file()  # else the comparison of the sweep tells
    told = alerts(record) if is_alone else {}
    return RunEnd(summary | numerics_shown(directory), outdated, told, tuple(_artifacts(id, record, directory)))


def alerts(record: RunRecord) -> dict[str, str]:
    """Alerts about a run that went wrong when nobody may be looking; none where `tracking.alerts` is off."""
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
    """Send the record as it is now, from which a report is made as from the one on disk; again at every change."""
    folder = Path(run.dir)
    with TemporaryDirectory() as elsewhere:  # where nobody looks for records
        record.write(Path(elsewhere))
        shutil.move(Path(elsewhere) / FILE_NAME, folder / RECORD_NAME)
    run.save(folder / RECORD_NAME, base_path=folder, policy="now")


def send_end(run: "wandb.Run", record: RunRecord, end: RunEnd) -> None:
    """Send record, summary, alerts, and as artifacts files asked for; waits for answers of the server."""
    send_record(run, record)
    summary: Any = run.summary
    for name in end.outdated & {*summary.keys()}:
        del summary[name]
    summary.update(end.summary)
    for title, text in end.alerts.items():
        run.alert(title, text, level="WARN")
    for artifact in end.artifacts:
        run.log_artifact(artifact)


def _artifacts(id: str, record: RunRecord, directory: Path) -> "Iterator[wandb.Artifact]":
    """The memory snapshot, where there is one, and with `tracking.checkpoints` the newest checkpoint."""
    import wandb

    for kind, path in artifact_files(record, directory).items():
        metadata = {"arm": record.arm, "config_hash": record.config_hash, "status": record.status}
        artifact = wandb.Artifact(artifact_name(kind, id), type=kind, metadata=metadata)
        add = artifact.add_dir if path.is_dir() else artifact.add_file
        add(str(path), policy="immutable")  # not copied: it can be large, and nobody changes it
        yield artifact


def artifact_name(kind: str, id: str) -> str:
    """The name of the run ``id``'s artifact of this type."""
    return f"{kind.replace('_', '-')}-{id}"


def artifact_files(record: RunRecord, directory: Path) -> dict[str, Path]:
    """The file, or the directory of files, of each artifact of the run, by the artifact's type."""
    snapshot = directory / SNAPSHOT_NAME
    files = {"memory_snapshot": snapshot if snapshot.exists() else None}
    if tracking_of(record).checkpoints:
        files["checkpoint"] = kept_checkpoint(directory, LAST)
    return {kind: path for kind, path in files.items() if path is not None}


def _tables(facts: Mapping[str, Any]) -> dict[str, "wandb.Table"]:
    """Bytes by category and dtypes by operators, of the traced step, and the ranks; what is not there has no table."""
    memory, proof, predicted = facts["memory"] or {}, facts["proof"] or {}, facts["prediction"] or {}
    peak, end, foreseen = memory.get("peak") or {}, memory.get("end_of_forward") or {}, predicted.get("peak") or {}
    flops, outputs = proof.get("flops") or {}, proof.get("outputs") or {}
    ranks = [
        one | {f"{key}_bytes": (one.get("peak") or {}).get(key) for key in MEMORY_CATEGORIES} for one in facts["ranks"]
    ]
    tables = {
        "memory_table": _table(
            ("category", "peak_bytes", "end_of_forward_bytes", "predicted_peak_bytes"),
            [(name, num_bytes, end.get(name), foreseen.get(name)) for name, num_bytes in peak.items()],
        ),
        "dtype_table": _table(
            ("dtype", "matmul_and_convolution_flops", "operator_outputs"),
            [(dtype, flops.get(dtype, 0), outputs.get(dtype, 0)) for dtype in sorted({*flops, *outputs})],
        ),
        "rank_table": _table(_OF_RANK, [[one.get(key) for key in _OF_RANK] for one in ranks]),
    }
    return {name: table for name, table in tables.items() if table.data}


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> "wandb.Table":
    import wandb

    return wandb.Table(list(columns), [list(row) for row in rows])


def numerics_shown(directory: Path) -> dict[str, Any]:
    """The histograms and the table of a run in `directory`; none if its numerics were not watched.

    A histogram's axis is the exponent of two: `numerics_gradient_log2` counts gradients of all layers.
    """
    import numpy as np
    import wandb

    try:
        numerics = RunNumerics.read(directory)
    except (FileNotFoundError, RecordError):
        return {}
    shown: dict[str, Any] = {}
    for kind in TENSOR_KINDS:
        counts = _counts([one for one in numerics.magnitudes if one.kind == kind])
        if 0 < len(counts) <= _MAX_BINS:
            edges = np.array([*counts, max(counts) + 1])
            shown[f"numerics_{kind}_log2"] = wandb.Histogram(np_histogram=(np.array([*counts.values()]), edges))
    columns: list[str | int] = [*_COLUMNS]
    if numerics.magnitudes:
        shown["numerics_table"] = wandb.Table(columns, [_row(one) for one in numerics.magnitudes])
    return shown


def _counts(magnitudes: list[Magnitudes]) -> dict[int, int]:
    """Elements by exponent, of all exponents from the lowest to the highest."""
    some = [one for one in magnitudes if one.counts]
    first = min((one.first_exponent for one in some), default=0)
    end = max((one.first_exponent + len(one.counts) for one in some), default=0)
    counts = dict.fromkeys(range(first, end), 0)
    for one in some:
        for index, count in enumerate(one.counts):
            counts[one.first_exponent + index] += count
    return counts


def _row(one: Magnitudes) -> list[Any]:
    highest = one.first_exponent + len(one.counts) - 1
    lowest_to_highest = [one.first_exponent, highest] if one.counts else [None, None]
    numbers = [one.num_steps, one.num_elements, one.num_zeros, one.num_nonfinite, one.max_abs]
    return [one.kind, one.layer, one.dtype, *numbers, *lowest_to_highest, one.unchanged_pct]
