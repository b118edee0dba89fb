"""Reads what the W&B client left on disk for a run."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class WandbFile:
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    """Rows without W&B's own keys, which begin with an underscore."""
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    run: Any = None
    exit_code: int | None = None
    kinds: set[str] = field(default_factory=set)


def read_wandb_file(directory: Path) -> WandbFile:
    """Read the `.wandb` file of a W&B run directory. The client has no reader in Python; its protocol buffers do it."""
    (path,) = directory.glob("*.wandb")
    content = WandbFile()
    for record in _records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        content.kinds.add(kind)
        if kind == "run":
            content.run = record.run
            content.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            row = {_key(item): json.loads(item.value_json) for item in record.history.item}
            content.history.append({key: value for key, value in row.items() if not key.startswith("_")})
        elif kind == "summary":
            content.summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
            for item in record.summary.remove:
                content.summary.pop(_key(item), None)
        elif kind == "metric":
            content.metrics[record.metric.name or record.metric.glob_name] = record.metric
        elif kind == "exit":
            content.exit_code = record.exit.exit_code
    return content


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def _records(data: bytes) -> Iterator[Any]:
    """Log format of LevelDB: blocks of 32 KiB, in them chunks of checksum, length, type (1 whole, 2-4 first to last).

    https://github.com/google/leveldb/blob/main/doc/log_format.md; W&B puts 7 bytes before the first chunk.
    """
    from wandb.proto import wandb_internal_pb2

    position, parts = 7, b""
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record
