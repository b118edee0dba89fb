"""The diagnosis of a training: its findings, each a class with facts and sentences, and all measured figures."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, Final

from ampsweep.config.schema import COMPLAINTS, Complaint, PrecisionConfig
from ampsweep.finding import Finding, Severity, as_data
from ampsweep.observe.calls import Call
from ampsweep.records.files import write_atomically
from ampsweep.redaction import hidden
from ampsweep.text import duration, listed, milliseconds, num_bytes, number, percent, ratio

DIAGNOSIS_NAME: Final = "diagnosis.json"
DIAGNOSIS_SCHEMA: Final = 1
PRICED: Final[dict[Complaint, str]] = {"memory": "of the peak memory", "speed": "of the step's time"}
_MOST_MODULES: Final = 4
_UNITS: Final[dict[str, Callable[[float], str]]] = {
    "_pct": percent,
    "_ms": milliseconds,
    "_bytes": num_bytes,
    "_x": ratio,
    "_seconds": duration,
}
"""Suffixes of facts that name their unit, and how to format such facts."""


@dataclass(frozen=True, kw_only=True)
class Change:
    overrides: list[str] = field(default_factory=list)  # overrides of `train.py`; empty if only code fixes it
    code: str | None = None  # None if overrides do it; else a patch of the training's code
    words: str | None = None  # what it does, if not what the finding's remedy says


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    mends: bool  # the change fixes the finding

    @property
    def sentence(self) -> str:
        return "tried: that mends it"


class DoctorFinding(Finding):
    """Base of the kinds of findings. Sentences name facts and other attributes in braces: `{at}` (the line), `{inside}`
    (the modules), both as ends of clauses."""

    severity: ClassVar[Severity] = "fault"
    complaint: ClassVar[Complaint]
    seen: ClassVar[tuple[str, ...]] = ()  # a sentence for each measurement
    remedy: ClassVar[str | None] = None  # the change in words, without the override or code, which follow it
    remedy_by_overrides: ClassVar[str | None] = None  # the same for a change by overrides, if it needs other words

    cost_pct: float | None = None
    """Share of the step's time (`speed`) or the peak memory (`memory`); None for a finding that breaks a training."""
    modules: list[str] = field(default_factory=list)  # the main module first; empty outside the model
    operator: str | None = None  # as torch writes it: `aten.softmax`
    place: str | None = None  # the line of the model or the task: `nets.py, line 12`
    change: Change = field(default_factory=Change)
    proof: TriedChange | None = None  # None if the change was not tried
    also: list[str] = field(default_factory=list)  # what else comes of the same cause

    @property
    def evidence(self) -> list[str]:
        return [self.filled(template) for template in self.seen]

    @property
    def advice(self) -> str | None:
        words = (self.remedy_by_overrides if self.change.overrides else None) or self.remedy
        return self.change.words or (None if words is None else self.filled(words))

    @property
    def price(self) -> str:
        return f"{percent(self.cost_pct or 0.0)} {PRICED[self.complaint]}"

    @property
    def at(self) -> str:
        return "" if self.place is None else f" ({self.place})"

    @property
    def inside(self) -> str:
        more = f" and {len(self.modules) - 1} more" if len(self.modules) > 1 else ""
        return f" in {module_name(self.modules[0])}{more}" if self.modules else ""

    @property
    def all_modules(self) -> str:
        return listed(map(module_name, self.modules), _MOST_MODULES)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of this kind by name, with dataclasses flattened."""
        found: dict[str, Any] = {}
        for own in fields(self):
            if own.name not in _SHARED:
                value = getattr(self, own.name)
                inner = [each.name for each in fields(value) if each.repr] if is_dataclass(value) else []
                found |= {name: getattr(value, name) for name in inner} or {own.name: value}
        return found

    def filled(self, template: str) -> str:
        """A template filled with facts, formatted with their units, and other attributes."""
        facts, names = self.facts, [name for _, name, _, _ in Formatter().parse(template) if name]
        values = {name: fact_text(name, facts[name]) if name in facts else getattr(self, name) for name in names}
        return template.format_map(values)

    def as_json(self) -> dict[str, Any]:
        shared = {name: getattr(self, name) for name in _SHARED}
        sentences = {
            "evidence": [*self.evidence, *self.also],
            "change": self.advice,
            "proof": self.proof and self.proof.sentence,
        }
        facts = {"complaint": self.complaint, "kind": self.kind(), **shared, "evidence": self.facts}
        return {**facts, "headline": self.sentence, "sentences": sentences}


_SHARED: Final = tuple(shared.name for shared in fields(DoctorFinding))


def where(call: Call) -> dict[str, Any]:
    """The place of a finding, by the names of its attributes."""
    modules = [] if call.module is None else [call.module]
    return {"modules": modules, "operator": call.operator, "place": call.place}


@dataclass(frozen=True, kw_only=True)
class Unexamined:
    complaint: Complaint
    reason: str  # a clause for the user
    is_begun: bool = False  # it was cut short


@dataclass(kw_only=True)
class Diagnosis:
    arm: str
    model: str
    data: str
    device: str
    device_name: str
    run: str | None = None  # directory of the examined run; None for a command line
    first_step: int = 1  # the step of the training where the replay starts
    steps: int = 0  # steps that were replayed at most
    findings: list[DoctorFinding] = field(default_factory=list)  # sorted by cost
    unexamined: list[Unexamined] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)  # figures by `COMPLAINT/NAME`, with or without findings
    seconds: float = 0.0  # how long the examination took

    def write(self, directory: Path) -> None:
        """Write `diagnosis.json`, without secrets and atomically."""
        text = json.dumps(hidden(self.as_json()), indent=1, allow_nan=False)
        write_atomically(directory / DIAGNOSIS_NAME, text + "\n")

    def as_json(self) -> dict[str, Any]:
        data: dict[str, Any] = as_data(vars(self) | {"findings": [finding.as_json() for finding in self.findings]})
        return {"schema": DIAGNOSIS_SCHEMA, **data}


def in_order(findings: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    def order(finding: DoctorFinding) -> tuple[bool, float, int]:
        return finding.cost_pct is not None, -(finding.cost_pct or 0.0), COMPLAINTS.index(finding.complaint)

    return sorted(findings, key=order)


def merged(findings: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """The findings in order, those of one cause merged into the first."""
    causes: list[DoctorFinding] = []
    for finding in in_order(findings):
        number = next((number for number, known in enumerate(causes) if _is_of(known, finding)), None)
        if number is None:
            causes.append(finding)
            continue
        known = causes[number]
        if finding.complaint != known.complaint and finding.cost_pct is not None:
            known = replace(known, also=[*known.also, f"it costs {finding.price}, too"])
        is_vague = not known.place and not known.modules
        if is_vague and finding.change != Change():
            causes[number] = replace(finding, also=known.evidence[:1])
        elif is_vague:
            causes[number] = replace(known, modules=finding.modules, operator=finding.operator, place=finding.place)
        else:
            causes[number] = replace(known, place=known.place or finding.place)
    return causes


def _is_of(cause: DoctorFinding, finding: DoctorFinding) -> bool:
    """Return True if another finding comes of a cause: of the same change, line or, for wrong numbers, modules."""
    changes = [
        found.change.code or [own for own in found.change.overrides if not own.startswith("precision=")]
        for found in (cause, finding)
    ]
    if changes[0] and changes[0] == changes[1]:
        return True
    is_same_line = cause.place is not None and cause.place == finding.place
    if finding.complaint == "numerics" and cause.complaint in ("loss", "types", "numerics"):
        is_vague = not (cause.place or cause.modules) or (cause.complaint == "loss" and finding.kind() == "large_error")
        return is_same_line or is_vague or bool({*cause.modules} & {*finding.modules})
    return is_same_line and (finding.proof is None or finding.complaint == cause.complaint)


def fact_text(name: str, value: object) -> str:
    """A fact with the unit that its name ends with.

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
        case list() | tuple():
            return listed(map(str, value)) if value else "none"
    return str(value)


def without_unit(name: str) -> str:
    end = next((end for end in _UNITS if name.endswith(end)), "")
    return name.removesuffix(end).replace("_", " ")


def module_name(module: str) -> str:
    return module or "the model itself"


def kept_in_float32(precision: PrecisionConfig, modules: Iterable[str]) -> str:
    """The override that keeps modules in float32, in addition to those that are already."""
    return f"precision.fp32_modules=[{','.join([*precision.fp32_modules, *modules])}]"
