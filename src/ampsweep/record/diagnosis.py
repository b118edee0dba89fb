"""The diagnosis of a training, `diagnosis.json`: what the doctor found, as facts; sentences are the report's."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from ampsweep.complaints import COMPLAINTS, Complaint
from ampsweep.record.files import RecordError, read_file, write_atomically
from ampsweep.record.parts import as_json
from ampsweep.record.reading import WrongValueError, converted
from ampsweep.redaction import hidden

DIAGNOSIS_NAME: Final = "diagnosis.json"
DIAGNOSIS_SCHEMA: Final = 1

Fact = float | int | str | bool | None | list[str]
"""A value of a finding's evidence; units end the names of numbers."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The smallest change that mends a finding."""

    overrides: list[str] = field(default_factory=list)
    """Overrides of `train.py`; empty where only code mends it."""
    code: str | None = None
    """The edit of the user's code at the finding's place, as one line of Python; None where overrides do it."""


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """One thing that is wrong with a training, or keeps it from gaining."""

    complaint: Complaint
    kind: str
    """The key of its sentences in `ampsweep.report.sentences.findings`."""
    cost_pct: float | None = None
    """The share that it costs: of the step's time (`speed`), or of the peak memory (`memory`). None for what breaks a
    training, which comes before everything that has a price."""
    modules: list[str] = field(default_factory=list)
    """Names of the modules in which it happens, the one to look at first at first; empty outside the model."""
    operator: str | None = None
    """As torch writes it: `aten.softmax`."""
    place: str | None = None
    """The line of the model or the task: `nets.py, line 12`."""
    evidence: dict[str, object] = field(default_factory=dict)
    """The figures behind it, by names whose ends tell units; values are of `Fact`."""
    change: Change = field(default_factory=Change)
    proof: dict[str, object] = field(default_factory=dict)
    """The figures with the change applied; empty where it was not tried. `mends` tells whether it helped."""


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
    schema: int = DIAGNOSIS_SCHEMA
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
    """Figures of the examinations by `COMPLAINT/NAME`, findings or not: the bound of the speedup, headroom, errors."""
    seconds: float = 0.0
    """Time that it took."""

    def write(self, directory: Path) -> Path:
        """Write `diagnosis.json` into `directory`, without secrets and atomically; return its path."""
        path = directory / DIAGNOSIS_NAME
        write_atomically(path, json.dumps(hidden(self.as_json()), indent=1, allow_nan=False) + "\n")
        return path

    def as_json(self) -> dict[str, Any]:
        """Copy it into a JSON object."""
        return {one.name: as_json(getattr(self, one.name)) for one in fields(self)}

    def without_secrets(self) -> "Diagnosis":
        """Copy it as it may be shown."""
        shown: Diagnosis = converted(hidden(self.as_json()), Diagnosis)
        return shown

    @staticmethod
    def read(directory: Path) -> "Diagnosis":
        """Read the diagnosis in `directory`.

        Raises:
            RecordError: the file is no diagnosis, or of another schema.
            FileNotFoundError: there is no such file.
        """
        path = directory / DIAGNOSIS_NAME
        try:
            content = json.loads(read_file(path))
            if not isinstance(content, dict) or content.get("schema") != DIAGNOSIS_SCHEMA:
                raise RecordError(path, f"is no diagnosis of schema {DIAGNOSIS_SCHEMA}")
            diagnosis: Diagnosis = converted(content, Diagnosis)
        except WrongValueError as error:
            raise RecordError(path, f"is no diagnosis: {error}") from error
        except RecordError:
            raise
        except ValueError as error:
            raise RecordError(path, "is no JSON") from error
        return diagnosis


def written(value: float) -> float | str:
    """A number as a diagnosis holds it: one that is not finite by its name, as JSON has none."""
    return value if math.isfinite(value) else str(value)


def in_order(findings: list[DoctorFinding]) -> list[DoctorFinding]:
    """Sort findings by what they cost: what breaks a training first, then by price."""
    return sorted(findings, key=lambda one: (one.cost_pct is not None, -(one.cost_pct or 0.0), _rank(one)))


def _rank(finding: DoctorFinding) -> int:
    return COMPLAINTS.index(finding.complaint)


def facts_of(complaint: Complaint, facts: Mapping[str, Fact]) -> dict[str, object]:
    """Name facts by their complaint."""
    return {f"{complaint}/{name}": value for name, value in facts.items()}
