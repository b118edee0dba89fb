"""The few small files that leave a machine with what a campaign has found, and the way back from them."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ampsweep.record import FILE_NAME, RunRecord, find_records
from ampsweep.report.files import JSON_NAME
from campaign.ledger import BY_HAND_NAME, NAME

RECORDS_NAME: Final = "records.jsonl.gz"
COMPARISONS_NAME: Final = "comparisons.json.gz"
FILES: Final = (NAME, BY_HAND_NAME, RECORDS_NAME, COMPARISONS_NAME)
_MULTIRUN: Final = "multirun.yaml"


def pack(directory: Path, packed: Path) -> None:
    """Write what the campaign in `directory` has found to `packed`.

    campaign.json, by_hand.jsonl, records.jsonl.gz (a line a run: its place and its record, without the machine's name
    and the places of files on it) and comparisons.json.gz (by experiment, as `comparison.json` of its multirun).
    """
    packed.mkdir(parents=True, exist_ok=True)
    for name in (NAME, BY_HAND_NAME):
        if (directory / name).is_file():
            _replace(packed / name, (directory / name).read_bytes())
    lines = [json.dumps(line, separators=(",", ":"), default=str) for line in _lines(directory / "runs")]
    _write_compressed(packed / RECORDS_NAME, "".join(f"{line}\n" for line in lines))
    _write_compressed(packed / COMPARISONS_NAME, json.dumps(_comparisons(directory / "runs")))


def restore(packed: Path, directory: Path) -> int:
    """Put what `packed` holds where a campaign in `directory` would have left it; the number of runs that were added.

    What is there already stays. Histories, pages and checkpoints were not packed.

    Raises:
        OSError, ValueError: a file is damaged.
    """
    for name in (NAME, BY_HAND_NAME):
        if (packed / name).is_file() and not (directory / name).exists():
            directory.mkdir(parents=True, exist_ok=True)
            _replace(directory / name, (packed / name).read_bytes())
    added = 0
    for line in _read_compressed(packed / RECORDS_NAME).splitlines():
        content = json.loads(line)
        place = directory / "runs" / content["place"]
        if (place / FILE_NAME).exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        (place / FILE_NAME).write_text(json.dumps(content["record"]), encoding="utf-8")
        if not (place.parent / _MULTIRUN).exists():
            (place.parent / _MULTIRUN).write_text("# restored from packed records\n", encoding="utf-8")
        added += 1
    return added


def _lines(runs: Path) -> Iterator[dict[str, Any]]:
    for place, record in find_records(runs).records:
        yield {"place": place.relative_to(runs).as_posix(), "record": _published(record)}


def _published(record: RunRecord) -> dict[str, Any]:
    content = record.as_json()
    content["attempts"] = [
        {key: one[key] for key in ("started_at", "from_step") if key in one} for one in content["attempts"]
    ]
    content["config"] |= {"output_dir": "outputs", "into": None}
    content["wandb"] = {}
    return content


def _comparisons(runs: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for path in sorted(runs.glob(f"*/*/{JSON_NAME}")):
        found.setdefault(path.parents[1].name, []).append(json.loads(path.read_text(encoding="utf-8")))
    return found


def _write_compressed(path: Path, text: str) -> None:
    _replace(path, gzip.compress(text.encode(), mtime=0))


def _read_compressed(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode() if path.is_file() else ""


def _replace(path: Path, content: bytes) -> None:
    """Readers, and those who copy files from a machine that is about to go, see the old file or the new."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(content)
    temporary.replace(path)
