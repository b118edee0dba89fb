"""State that stops moving, integers that are rounded, and trainings in which neither is a fault."""

import linecache

import pytest
from planted import examined_of
from planted_state import HEALTHY, PLANTED

from ampsweep.doctor.examine import examine


@pytest.mark.parametrize(("planted", "line"), PLANTED, ids=lambda of: getattr(of, "name", ""))
def test_the_line_that_loses_state_or_integers_is_named_and_mended(planted, line):
    examined = examined_of(*planted.overrides, "tracking=disabled", num_steps=None, seconds=200.0)
    findings, unexamined = examine(examined, ["numerics"])
    assert unexamined == []
    found = findings[0]
    assert (found.kind(), next(iter(found.modules), None)) == (planted.kind, planted.module)
    assert planted.operator in (None, found.operator)
    assert line in linecache.getline(found.place.file, found.place.number)
    assert found.proof.mends
    assert bool(found.change.code) != bool(found.change.overrides)
    if found.kind() == "stuck_state":
        assert found.moved_pct < 10 < 50 < found.unchanged_pct
    else:
        assert found.exact - found.rounded in (1, -1)
        assert found.effect_pct > 6


@pytest.mark.parametrize("overrides", HEALTHY.values(), ids=HEALTHY)
def test_state_that_moves_and_integers_without_consequence_are_no_findings(overrides):
    examined = examined_of(*overrides, "tracking=disabled", num_steps=None, seconds=200.0)
    assert examine(examined, ["types", "loss", "numerics"]) == ([], [])
