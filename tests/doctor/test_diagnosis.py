"""The findings of the doctor: their order and their sentences."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import count
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import ampsweep.doctor.examine  # noqa: F401  all findings
from ampsweep.config.schema import COMPLAINTS
from ampsweep.doctor.diagnosis import Change, DoctorFinding, in_order


def kinds(base: type[DoctorFinding] = DoctorFinding) -> list[type[DoctorFinding]]:
    """The classes of findings, without those that are bases only."""
    own = [base] if hasattr(base, "template") or base.sentence is not DoctorFinding.sentence else []
    found = [*own, *(kind for inner in base.__subclasses__() for kind in kinds(inner))]
    return [kind for kind in found if kind.__module__.startswith("ampsweep.")]


def sample(hint: Any, name: str, numbers: Iterator[int]) -> Any:
    """A value of a field's type: its name, or a number that no other field has."""
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if get_origin(hint) is list:
        return [sample(get_args(hint)[0], f"{name}_{number}", numbers) for number in (1, 2)]
    if NoneType in get_args(hint):
        return sample(get_args(hint)[0], name, numbers)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        own = [(fact, hints[fact.name]) for fact in fields(hint)]
        return hint(**{fact.name: sample(of, fact.name, numbers) if fact.repr else None for fact, of in own})
    return {int: next, float: lambda counter: next(counter) / 1000, str: lambda _: name, bool: bool}[hint](numbers)


def made(kind: type[DoctorFinding], **facts: object) -> DoctorFinding:
    """A finding with a value for each fact of its own."""
    hints, shared, numbers = get_type_hints(kind), {fact.name for fact in fields(DoctorFinding)}, count(2001, 1010)
    own = [fact.name for fact in fields(kind) if fact.name not in shared]
    return kind(**{name: sample(hints[name], name, numbers) for name in own}, **facts)


def test_every_kind_has_its_sentences(golden):
    """The page has them with invented facts; those of a base only once."""
    document = {}
    assert len({(kind.complaint, kind.kind()) for kind in kinds()}) == len(kinds())
    for kind in sorted(kinds(), key=lambda kind: (COMPLAINTS.index(kind.complaint), kind.kind())):
        document[f"## {kind.complaint}: {kind.kind()}"] = None
        for change in (Change(), Change(overrides=["a=1"])):
            found = made(kind, change=change, modules=["inner", "outer"], operator="aten.add", place="nets.py, line 2")
            lines = [found.sentence, *found.evidence, *([found.advice] if found.advice else [])]
            assert not [line for line in lines if line.endswith(".") or "None" in line or "{" in line or not line]
            document |= dict.fromkeys(lines)
        content = made(kind).as_json()
        assert content["headline"]
        assert set(content["evidence"]) == set(made(kind).facts)
    golden("sentences.md", "".join(f"{line}\n" for line in document))


def test_what_breaks_a_training_comes_first_then_the_price():
    by_complaint = {kind.complaint: kind for kind in kinds()}
    prices = [("speed", 10.0), ("memory", 40.0), ("speed", 90.0), ("loss", None), ("types", None)]
    found = in_order(made(by_complaint[complaint], cost_pct=cost) for complaint, cost in prices)
    assert [(finding.complaint, finding.cost_pct) for finding in found] == [
        ("types", None), ("loss", None), ("speed", 90.0), ("memory", 40.0), ("speed", 10.0)
    ]  # fmt: skip
