"""A diagnosis in words, apart from its findings: heading, prices, places, what was not examined, and its figures."""

import math
import shlex
from collections.abc import Callable, Mapping
from typing import Final

from ampsweep.complaints import Complaint
from ampsweep.record.diagnosis import Diagnosis, DoctorFinding, Unexamined
from ampsweep.text import duration, listed, milliseconds, num_bytes, number, percent, plural, ratio

COMPLAINT_NAMES: Final[dict[Complaint, str]] = {
    "types": "Type mismatch",
    "loss": "Loss",
    "numerics": "Numerics",
    "memory": "Memory",
    "speed": "Speed",
}
NOTHING_FOUND: Final = "Nothing found"
_PRICED: Final[dict[Complaint, str]] = {"memory": "of the peak memory", "speed": "of the step's time"}
_PRICED_IN_SHORT: Final[dict[Complaint, str]] = {"memory": "of memory", "speed": "of time"}
_UNITS: Final[dict[str, Callable[[float], str]]] = {
    "_pct": percent,
    "_ms": milliseconds,
    "_bytes": num_bytes,
    "_gib": lambda value: num_bytes(value * 2**30),
    "_x": ratio,
    "_seconds": duration,
    "_s": duration,
}
"""The units that end a figure's name, and how figures with them are written."""
_MAX_MODULES: Final = 6


def diagnosis_heading(of: Diagnosis) -> str:
    """The training that was examined: 'amp_fp16, gpt_tiny on tokens, AMD EPYC'."""
    return f"{of.arm}, {of.model} on {of.data}, {of.device_name}"


def summary(of: Diagnosis) -> str:
    """One line on what was found, in how much time."""
    found = plural(len(of.findings), "finding") if of.findings else NOTHING_FOUND.lower()
    left = f", {listed(dict.fromkeys(one.complaint for one in of.unexamined))} not examined" if of.unexamined else ""
    steps = f", {plural(of.steps, 'step')} replayed at most" if of.steps else ""
    return f"{found}{left}{steps}, {duration(of.seconds)}"


def price(of: DoctorFinding) -> str | None:
    """The share that a finding costs, in short: '24% of time'; None of what breaks a training."""
    return None if of.cost_pct is None else f"{percent(of.cost_pct)} {_PRICED_IN_SHORT.get(of.complaint, '')}".rstrip()


def priced(of: DoctorFinding) -> str | None:
    """The share that a finding costs, and what of: '24% of the step's time'."""
    return None if of.cost_pct is None else f"{percent(of.cost_pct)} {_PRICED.get(of.complaint, '')}".rstrip()


def where(of: DoctorFinding) -> list[tuple[str, str]]:
    """The places of a finding that are known, by what they are."""
    modules = listed((one or "the model" for one in of.modules), _MAX_MODULES)
    places = (("module" if len(of.modules) == 1 else "modules", modules), ("operator", of.operator), ("at", of.place))
    return [(kind, place) for kind, place in places if place]


def mends(of: DoctorFinding) -> bool | None:
    """Tell whether the change has helped; None where it was not tried, or nothing tells."""
    told = of.proof.get("mends")
    return told if isinstance(told, bool) else None


def not_examined(of: Unexamined) -> str:
    """A sentence on a complaint that was not examined."""
    return f"{COMPLAINT_NAMES[of.complaint]} was not examined: {of.reason}"


def code_of(of: DoctorFinding) -> list[str]:
    """The overrides of a finding as one command line takes them, then its code, each to be copied as it stands."""
    overrides = " ".join(shlex.quote(one) for one in of.change.overrides)
    return [one for one in (overrides, of.change.code) if one]


def fact_lines(facts: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """The figures of a diagnosis: complaint, name and value; what is no single value is left out."""
    lines = []
    for key, value in facts.items():
        complaint, _, name = key.partition("/")
        if (text := fact_text(name, value)) is not None:
            lines.append((complaint, _without_unit(name), text))
    return lines


def fact_text(name: str, value: object) -> str | None:
    """A figure with the unit that ends its name; None of what is no single value.

    >>> fact_text("cost_pct", 12.34), fact_text("step_ms", 4.0), fact_text("is_compiled", True), fact_text("steps", 8)
    ('12.3%', '4.00 ms', 'yes', '8')
    """
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return "unknown"
        case int() | float() if math.isfinite(value):
            unit = next((write for end, write in _UNITS.items() if f"_{name}".endswith(end)), None)
            if unit is not None:
                return unit(value)
            return f"{value:,}" if isinstance(value, int) else number(value)
        case int() | float() | str():
            return str(value)
        case list() if all(isinstance(one, str) for one in value):
            return listed(value) if value else "none"
    return None


def _without_unit(name: str) -> str:
    end = next((end for end in _UNITS if name.endswith(end)), "")
    return name.removesuffix(end).replace("_", " ")
