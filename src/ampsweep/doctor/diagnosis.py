"""The diagnosis of a training: findings, each a class with its facts and its sentences, and all that was measured."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, Final

from ampsweep.config.schema import COMPLAINTS, Complaint, PrecisionConfig
from ampsweep.finding import Finding, Severity, as_data
from ampsweep.record.files import write_atomically
from ampsweep.redaction import hidden
from ampsweep.text import duration, listed, milliseconds, num_bytes, number, percent, ratio

DIAGNOSIS_NAME: Final = "diagnosis.json"
DIAGNOSIS_SCHEMA: Final = 1
_MOST_MODULES: Final = 4
_UNITS: Final[dict[str, Callable[[float], str]]] = {
    "_pct": percent,
    "_ms": milliseconds,
    "_bytes": num_bytes,
    "_x": ratio,
    "_seconds": duration,
}
"""The units that end a fact's name, and how facts with them are written."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The smallest change that mends a finding."""

    overrides: list[str] = field(default_factory=list)
    """Overrides of `train.py`; empty where only code mends it."""
    code: str | None = None
    """The edit of the user's code at the finding's place, as one line of Python; None where overrides do it."""


@dataclass(frozen=True, kw_only=True)
class TriedChange(ABC):
    """A base of what a change did when it was tried."""

    mends: bool

    @property
    @abstractmethod
    def sentence(self) -> str:
        """A clause on what it did."""


class DoctorFinding(Finding):
    """One thing that is wrong with a training, or keeps it from gaining: a base of classes, one a kind.

    Sentences name facts and other attributes in braces, as `{at}` for the line and `{inside}` for the modules.
    """

    severity: ClassVar[Severity] = "fault"
    complaint: ClassVar[Complaint]
    seen: ClassVar[tuple[str, ...]] = ()
    """A sentence for each thing that was measured."""
    remedy: ClassVar[str | None] = None
    """The change in words, without the override or code, which follow it as they are."""
    remedy_by_overrides: ClassVar[str | None] = None
    """The same where overrides make the change, if the words are others."""

    cost_pct: float | None = None
    """The share that it costs: of the step's time (`speed`), or of the peak memory (`memory`). None for what breaks a
    training, which comes before everything that has a price."""
    modules: list[str] = field(default_factory=list)
    """Names of the modules in which it happens, the one to look at first at first; empty outside the model."""
    operator: str | None = None
    """As torch writes it: `aten.softmax`."""
    place: str | None = None
    """The line of the model or the task: `nets.py, line 12`."""
    change: Change = field(default_factory=Change)
    proof: TriedChange | None = None
    """None where the change was not tried."""

    @property
    def sentence(self) -> str:
        return self.told(self.template)

    @property
    def evidence(self) -> list[str]:
        """A sentence for each thing that was measured."""
        return [self.told(one) for one in self.seen]

    @property
    def advice(self) -> str | None:
        """The change in words."""
        words = self.remedy_by_overrides if self.change.overrides else None
        return None if self.remedy is None else self.told(words or self.remedy)

    @property
    def at(self) -> str:
        """The line, as the end of a clause."""
        return "" if self.place is None else f" ({self.place})"

    @property
    def inside(self) -> str:
        """The modules, as the end of a clause."""
        more = f" and {len(self.modules) - 1} more" if len(self.modules) > 1 else ""
        return f" in {module_name(self.modules[0])}{more}" if self.modules else ""

    @property
    def all_modules(self) -> str:
        return listed(map(module_name, self.modules), _MOST_MODULES)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of this kind by name, those that are dataclasses with their own names."""
        found: dict[str, Any] = {}
        for one in fields(self):
            if one.name not in _SHARED:
                value = getattr(self, one.name)
                inner = [each.name for each in fields(value) if each.repr] if is_dataclass(value) else []
                found |= {name: getattr(value, name) for name in inner} or {one.name: value}
        return found

    def told(self, template: str) -> str:
        """A sentence with what it names: facts with their units, else attributes."""
        facts, names = self.facts, [name for _, name, _, _ in Formatter().parse(template) if name]
        told = {name: fact_text(name, facts[name]) if name in facts else getattr(self, name) for name in names}
        return template.format_map(told)

    def as_json(self) -> dict[str, Any]:
        """The facts and the sentences that follow from them."""
        shared = {name: getattr(self, name) for name in _SHARED}
        told = {"evidence": self.evidence, "change": self.advice, "proof": self.proof and self.proof.sentence}
        facts = {"complaint": self.complaint, "kind": self.kind(), **shared, "evidence": self.facts}
        return {**facts, "headline": self.sentence, "sentences": told}


_SHARED: Final = tuple(one.name for one in fields(DoctorFinding))


@dataclass(frozen=True, kw_only=True)
class Unexamined:
    """A complaint that was not examined, or not to its end."""

    complaint: Complaint
    reason: str
    """A clause for the user."""


@dataclass(kw_only=True)
class Diagnosis:
    """All that the doctor found out about one training in one precision."""

    arm: str
    model: str
    data: str
    device: str
    device_name: str
    run: str | None = None
    """Directory of the run that was examined; None for a command line."""
    first_step: int = 1
    """The step of the training from which steps were replayed."""
    steps: int = 0
    """Steps that were replayed at most."""
    findings: list[DoctorFinding] = field(default_factory=list)
    """Sorted by what they cost."""
    unexamined: list[Unexamined] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    """Figures of the examinations by `COMPLAINT/NAME`, findings or not: times, headroom, errors."""
    seconds: float = 0.0
    """Time that it took."""

    def write(self, directory: Path) -> None:
        """Write `diagnosis.json` into `directory`, without secrets and atomically."""
        write_atomically(
            directory / DIAGNOSIS_NAME, json.dumps(hidden(self.as_json()), indent=1, allow_nan=False) + "\n"
        )

    def as_json(self) -> dict[str, Any]:
        """Copy it into a JSON object."""
        data: dict[str, Any] = as_data(vars(self) | {"findings": [one.as_json() for one in self.findings]})
        return {"schema": DIAGNOSIS_SCHEMA, **data}


def in_order(findings: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """Sort findings by what they cost: what breaks a training first, then by price."""
    return sorted(
        findings,
        key=lambda one: (one.cost_pct is not None, -(one.cost_pct or 0.0), COMPLAINTS.index(one.complaint)),
    )


def fact_text(name: str, value: object) -> str:
    """A fact with the unit that ends its name.

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
    """The name of a fact in words, without the unit at its end."""
    end = next((end for end in _UNITS if name.endswith(end)), "")
    return name.removesuffix(end).replace("_", " ")


def module_name(module: str) -> str:
    """The name of a module in sentences."""
    return module or "the model itself"


def kept_in_float32(precision: PrecisionConfig, modules: Iterable[str]) -> str:
    """The override that keeps modules in float32, beside those that are already."""
    return f"precision.fp32_modules=[{','.join([*precision.fp32_modules, *modules])}]"
