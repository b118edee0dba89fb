"""Reading of JSON files into dataclasses, with types checked by msgspec."""

import json
from pathlib import Path
from threading import Lock
from typing import Any, Final, Never, TypeVar

from ampsweep.records.files import CHANGED, RecordError, is_as_sealed, read_file

T = TypeVar("T")
_ONE_AT_A_TIME: Final = Lock()
"""msgspec 0.22 inspects a class at its first use; two threads doing so at once crash the process."""


def converted(content: object, kind: type[T]) -> T:
    """Convert JSON values to a dataclass or TypedDict, ignoring unknown keys; a ValueError names a wrong key."""
    import msgspec  # here: writing a record does without

    try:
        with _ONE_AT_A_TIME:
            return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).replace("`", "").partition(" - at ")
        key = place.replace("$.", "")
        clause = what[0].lower() + what[1:]
        raise ValueError(f"{key}: {clause}" if key else clause) from error


def read_object(path: Path, noun: str, schema: int, kind: type[T]) -> T:
    """Read a file that holds a JSON object of this schema as a `kind`; `noun`: such as `a run record`. RecordError: it
    is something else, incomplete, of another schema, or does not match its digest. FileNotFoundError: there is none."""
    written = read_file(path)
    content = _parsed(path, written)
    found = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(content, dict) or type(found) is not int:
        raise RecordError(path, f"is not {noun}: it names no schema")
    if found != schema:
        raise RecordError(path, f"is {noun} of schema {found}; this version of ampsweep reads schema {schema}")
    if not is_as_sealed(written, content):
        raise RecordError(path, CHANGED)
    try:
        return converted(content, kind)
    except ValueError as error:
        raise RecordError(path, f"is not {noun}: {error}") from error


def _parsed(path: Path, written: bytes) -> Any:
    try:  # by json: msgspec does not take half of a surrogate pair, which is valid
        return json.loads(written.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RecordError(path, f"is not JSON: {error}") from error


def _refuse(constant: str) -> Never:
    raise ValueError(f"it holds {constant}, which is no finite number")
