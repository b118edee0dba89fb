"""Findings about runs: each kind a class with its facts, how grave it is, and its sentence."""

import re
from abc import ABC
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, dataclass_transform

Severity = Literal["note", "warning", "fault"]
"""`note`: worth knowing; `warning`: some figures do not count; `fault`: none does, or a training goes wrong."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Finding(ABC):
    """A base of classes, one a kind, that are frozen dataclasses without a decorator.

    The fields are the facts, which are stored; the sentence follows from them.
    """

    severity: ClassVar[Severity] = "note"
    template: ClassVar[str]
    """The sentence with facts in braces, of a kind that does not put it together itself."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    @property
    def sentence(self) -> str:
        """The finding as a clause: without a capital letter and without a stop."""
        return self.template.format(**vars(self))

    @classmethod
    def kind(cls) -> str:
        """The name of the class as data: `NotCompleted` is `not_completed`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def as_data(value: Any) -> Any:
    """A value made of dataclasses as JSON has it; a finding has its kind and its sentence beside its facts."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": value.kind()} if isinstance(value, Finding) else {}
        told = {"sentence": value.sentence} if hasattr(value, "sentence") else {}
        return {**kind, **{one.name: as_data(getattr(value, one.name)) for one in fields(value) if one.repr}, **told}
    if isinstance(value, dict):
        return {key: as_data(one) for key, one in value.items()}
    return [as_data(one) for one in value] if isinstance(value, list | tuple) else value
