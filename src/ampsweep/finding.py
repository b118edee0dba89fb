"""Findings about runs: each kind a class with its facts, how grave it is, and its sentence."""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Literal

Severity = Literal["note", "warning", "fault"]
"""`note`: worth knowing; `warning`: some figures do not count; `fault`: none does, or a training goes wrong."""


class Finding(ABC):
    """A base of dataclasses, one a kind: the fields are the facts, which are stored; the sentence follows from them."""

    severity: ClassVar[Severity] = "note"

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The finding as a clause: without a capital letter and without a stop."""

    @classmethod
    def kind(cls) -> str:
        """The name of the class as data: `NotCompleted` is `not_completed`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def as_data(value: Any) -> Any:
    """A value made of dataclasses as JSON has it; a finding has its kind and its sentence beside its facts.

    JSON has no numbers that are not finite: these are there by their names.
    """
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": value.kind()} if isinstance(value, Finding) else {}
        told = {"sentence": value.sentence} if hasattr(value, "sentence") else {}
        return {**kind, **{one.name: as_data(getattr(value, one.name)) for one in fields(value)}, **told}
    if isinstance(value, dict):
        return {key: as_data(one) for key, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [as_data(one) for one in value] if isinstance(value, list | tuple) else value
