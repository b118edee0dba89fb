"""The names of devices: `auto`, a kind (`cpu`, `cuda`), one of a kind (`cuda:1`), cores of a CPU (`cpu:0-3+8`), and a
choice of several (`cuda:0/2`, `cpu:0-3/4-7`), of which a run takes one that is free."""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from ampsweep.cores import parse_cores

_ALLOWED: Final = (
    "allowed are auto, cpu, cuda, cuda:N and mps, cores of a CPU (cpu:0-3+8), and several to choose from (cuda:0/2)"
)
_MAX_CORE: Final = 2**13
"""More than Linux can be built for (NR_CPUS)."""


def choices(name: str) -> tuple[str, ...]:
    """The devices of a name: `cuda:0` and `cuda:2` of `cuda:0/2`, else the name alone."""
    kind, colon, places = name.partition(":")
    return tuple(f"{kind}:{place}" for place in places.split("/")) if colon else (name,)


def cores_of(device: str) -> frozenset[int] | None:
    """The cores that a device's name gives, 0 to 3 and 8 of `cpu:0-3+8`; None for any other device."""
    kind, colon, cores = device.partition(":")
    return parse_cores(cores) if kind == "cpu" and colon else None


def device_faults(name: str) -> Iterator[str]:
    """Sentences about what is wrong with the name of a device, whatever machine it is for."""
    if not re.fullmatch(r"auto|cpu(:[\d+/-]+)?|[a-z]+(:\d+(/\d+)*)?", name):
        yield f"device={name}: {_ALLOWED}"
        return
    devices, of_cores = choices(name), name.startswith("cpu:")
    if of_cores and (fault := next(filter(None, map(_core_fault, devices)), None)) is not None:
        yield f"device={name}: {fault}"
        return
    taken = [cores_of(one) or {int(one.partition(":")[2] or 0)} for one in devices]
    if any(one & other for one, other in combinations(taken, 2)):
        yield f"device={name}: names {'a core' if of_cores else 'a device'} twice"
    elif len({len(one) for one in taken}) > 1:
        yield f"device={name}: its sets must have the same number of cores, for runs on different ones do not pair"


def _core_fault(device: str) -> str | None:
    cores = device.partition(":")[2]
    if not re.fullmatch(r"\d{1,5}(-\d{1,5})?(\+\d{1,5}(-\d{1,5})?)*", cores):
        return f"{cores or 'nothing'} is no set of cores, such as 0-3 or 0-3+8-11"
    for part in cores.split("+"):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            return f"{part} ends before it begins"
        if int(last or first) >= _MAX_CORE:
            return f"{part}: no machine has as many cores"
    return None
