"""The turns of a step as a task names them."""

import re

import pytest

from ampsweep.config.errors import UserError
from ampsweep.tasks.base import Turn
from ampsweep.training.turns import trained_parts


def turn(name, **trains):
    return Turn(name=name, loss=abs, trains=trains)


def test_every_optimizer_gets_its_patterns_once():
    judge, maker = turn("judge", judge=["judge.*"]), turn("maker", maker=["maker.*", "head.*"])
    assert trained_parts((judge, judge, maker)) == {"judge": ["judge.*"], "maker": ["maker.*", "head.*"]}


@pytest.mark.parametrize(
    ("turns", "sentence"),
    [
        ((), "the task has no turns"),
        ((turn("judge"),), "the turn judge of the task trains nothing"),
        (
            (turn("judge", judge="judge.*"),),
            "the turn judge of the task trains judge by 'judge.*', no list",
        ),
        ((turn("one", a=["*"]), turn("one", a=["x"])), "the task has two different turns with the name one"),
        (
            (turn("one", a=["*"]), turn("two", a=["x"])),
            "the optimizer a trains other parameters in the turn two than before",
        ),
    ],
)
def test_turns_that_cannot_be_taken_are_refused(turns, sentence):
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        trained_parts(turns)
