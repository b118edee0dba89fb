"""The findings of the doctor: their order, their sentences, and the trainings that have planted ones."""

import importlib
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import ampsweep.doctor.examine  # noqa: F401  all findings
from ampsweep.config.schema import COMPLAINTS
from ampsweep.doctor.diagnosis import Change, DoctorFinding, in_order

PLANTED = [one for complaint in COMPLAINTS for one in importlib.import_module(f"planted_{complaint}").PLANTED]


def kinds(base: type[DoctorFinding] = DoctorFinding) -> list[type[DoctorFinding]]:
    """The classes of findings, without those that are bases only."""
    own = [base] if hasattr(base, "template") or base.sentence is not DoctorFinding.sentence else []
    found = [*own, *(one for inner in base.__subclasses__() for one in kinds(inner))]
    return [one for one in found if one.__module__.startswith("ampsweep.")]


def sample(hint: Any) -> Any:
    """A value of a field's type."""
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if get_origin(hint) is list:
        return [sample(get_args(hint)[0])] * 2
    if NoneType in get_args(hint):
        return sample(get_args(hint)[0])
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{one.name: sample(hints[one.name]) if one.repr else None for one in fields(hint)})
    return {int: 3, float: 1.5, str: "word", bool: True}[hint]


def made(kind: type[DoctorFinding], **facts: object) -> DoctorFinding:
    """A finding with a value for each fact of its own."""
    hints, shared = get_type_hints(kind), {one.name for one in fields(DoctorFinding)}
    return kind(**{one.name: sample(hints[one.name]) for one in fields(kind) if one.name not in shared}, **facts)


@pytest.mark.parametrize("change", [Change(), Change(overrides=["a=1"])], ids=["by code", "by override"])
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_kind_has_its_sentences(kind, change):
    found = made(kind, change=change, modules=["inner"], operator="aten.add", place="nets.py, line 2")
    lines = [found.sentence, *found.evidence, *([found.advice] if found.advice else [])]
    assert not [line for line in lines if line.endswith(".") or "None" in line or "{" in line or not line]
    assert made(kind).as_json()["headline"]


def test_kinds_have_names_of_their_own():
    names = [(one.complaint, one.kind()) for one in kinds()]
    assert len(names) == len(set(names))
    assert {(one.complaint, one.kind) for one in PLANTED} <= set(names)


def test_each_complaint_has_six_planted_faults():
    for complaint in COMPLAINTS:
        assert len([one for one in PLANTED if one.complaint == complaint]) >= 6


def test_what_breaks_a_training_comes_first_then_the_price():
    by_complaint = {one.complaint: one for one in kinds()}
    prices = {"speed": 10.0, "memory": 40.0, "loss": None, "types": None}
    found = in_order(made(by_complaint[complaint], cost_pct=cost) for complaint, cost in prices.items())
    assert [one.complaint for one in found] == ["types", "loss", "memory", "speed"]
