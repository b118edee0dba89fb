"""The order of findings, and the trainings that have planted ones."""

import importlib

from ampsweep.config.schema import COMPLAINTS
from ampsweep.doctor.diagnosis import DoctorFinding, in_order

PLANTED = [one for complaint in COMPLAINTS for one in importlib.import_module(f"planted_{complaint}").PLANTED]


def finding(complaint, cost_pct=None):
    return type(f"Of{complaint}", (DoctorFinding,), {"complaint": complaint})(cost_pct=cost_pct)


def test_each_complaint_has_six_planted_faults():
    for complaint in COMPLAINTS:
        assert len([one for one in PLANTED if one.complaint == complaint]) >= 6


def test_what_breaks_a_training_comes_first_then_the_price():
    findings = [finding("speed", 10.0), finding("memory", 40.0), finding("loss"), finding("types")]
    assert [one.complaint for one in in_order(findings)] == ["types", "loss", "memory", "speed"]
