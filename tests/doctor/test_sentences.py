"""Every finding that a planted fault has is told in words that name its place."""

import importlib

import pytest

from ampsweep.complaints import COMPLAINTS
from ampsweep.record.diagnosis import Change, DoctorFinding, in_order
from ampsweep.report.sentences.findings import SENTENCES, told

PLANTED = [one for complaint in COMPLAINTS for one in importlib.import_module(f"planted_{complaint}").PLANTED]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: f"{one.complaint}, {one.name}")
def test_a_planted_kind_has_sentences(planted):
    assert planted.kind in SENTENCES[planted.complaint]


def test_each_complaint_has_six_planted_faults():
    for complaint in COMPLAINTS:
        assert len([one for one in PLANTED if one.complaint == complaint]) >= 6


def test_an_unknown_kind_tells_its_facts():
    said = told(DoctorFinding(complaint="speed", kind="from_the_future", evidence={"share_pct": 12.5}))
    assert said.headline == "from the future"
    assert said.evidence == ["share_pct: 12.5"]


def test_what_breaks_a_training_comes_first_then_the_price():
    findings = [
        DoctorFinding(complaint="speed", kind="a", cost_pct=10.0),
        DoctorFinding(complaint="memory", kind="b", cost_pct=40.0),
        DoctorFinding(complaint="loss", kind="c", change=Change(overrides=["precision=fp32"])),
        DoctorFinding(complaint="types", kind="d"),
    ]
    assert [one.kind for one in in_order(findings)] == ["d", "c", "b", "a"]


def test_an_overflow_is_told_as_one():
    facts = {"dtype": "float16", "step": 1, "error": "inf", "float32_error": 2e-6}
    said = told(DoctorFinding(complaint="numerics", kind="no_digits_left", operator="aten.exp", evidence=facts))
    assert said.evidence == ["inf or NaN is in it at step 1, where float32 has finite numbers"]
