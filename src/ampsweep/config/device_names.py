"""The names of devices: `auto`, a kind (`cpu`, `cuda`), one of a kind (`cuda:1`), and a choice of several (`cuda:0/2`),
of which a run takes one that is free."""

import re
from collections.abc import Iterator
from typing import Final

_ALLOWED: Final = "allowed are auto, cpu, cuda, cuda:N and mps, and several to choose from (cuda:0/2)"


def choices(name: str) -> tuple[str, ...]:
    """The devices of a name: `cuda:0` and `cuda:2` of `cuda:0/2`, else the name alone."""
    kind, colon, places = name.partition(":")
    return tuple(f"{kind}:{place}" for place in places.split("/")) if colon else (name,)


def device_faults(name: str) -> Iterator[str]:
    """Sentences about what is wrong with the name of a device, whatever machine it is for."""
    if not re.fullmatch(r"auto|cpu|(?!cpu:)[a-z]+(:\d+(/\d+)*)?", name):
        yield f"device={name}: {_ALLOWED}"
    elif len(set(map(_index, choices(name)))) < len(choices(name)):
        yield f"device={name}: names a device twice"


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)
