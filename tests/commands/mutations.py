"""Ways in which a run's files get damaged."""

import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1e300, 1e-300, 1.5, 10**30, math.nan, math.inf, "", "NaN", [], {}, [1, "a"]),
    *({"a": {"b": [{}]}}, "<script>alert(1)</script>", "\ud800 \u202e \x00", "x" * 5000),
)


def truncate(path: Path, random: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.randrange(len(content) + 1)])


def flip_bytes(path: Path, random: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 1, 3, 30)) if content else 0):
        content[random.randrange(len(content))] = random.randrange(256)
    path.write_bytes(content)


def swap_digits(path: Path, random: random.Random) -> None:
    """Still JSON, most of the time, but other numbers and names."""
    content = bytearray(path.read_bytes())
    digits = [index for index, byte in enumerate(content) if chr(byte).isdigit()]
    for index in random.sample(digits, min(3, len(digits))):
        content[index] = ord(random.choice("0123456789"))
    path.write_bytes(content)


def swap_value(path: Path, random: random.Random) -> None:
    _edit(path, random, lambda parent, key: parent.__setitem__(key, random.choice(ODD_VALUES)))


def delete_key(path: Path, random: random.Random) -> None:
    _edit(path, random, lambda parent, key: parent.__delitem__(key))


def shuffle_lines(path: Path, random: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    random.shuffle(lines)
    path.write_bytes(b"".join(lines + lines[:3]))


def become(what: str) -> Callable[[Path, random.Random], None]:
    def change(path: Path, random: random.Random) -> None:
        path.unlink()
        if what == "a directory":
            path.mkdir()
        elif what == "a link to nowhere":
            path.symlink_to("nowhere")
        elif what == "empty":
            path.touch()

    change.__name__ = what
    return change


MUTATIONS = (
    *(truncate, flip_bytes, flip_bytes, swap_digits, swap_digits, swap_value, swap_value, swap_value, delete_key),
    *(delete_key, shuffle_lines, *map(become, ("a directory", "a link to nowhere", "empty", "gone"))),
)


def restore(path: Path, content: bytes) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _edit(path: Path, random: random.Random, change: Callable[[Any, Any], None]) -> None:
    """Change one value anywhere in a JSON file, or in one line of it."""
    is_record = path.suffix == ".json"
    lines = [path.read_text()] if is_record else path.read_text().splitlines()
    if not lines:
        return
    chosen = random.randrange(len(lines))
    content = json.loads(lines[chosen])
    change(*random.choice(list(_places(content))))
    lines[chosen] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n")


def _places(node: Any) -> Any:
    for key in node if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])
