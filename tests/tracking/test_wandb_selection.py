"""Addresses of runs on a W&B server."""

import pytest

from ampsweep.tracking.wandb.selection import Selection


def test_an_address_is_read_and_written():
    for address, selection in (
        ("wandb://team/mine", Selection("team", "mine")),
        ("wandb://Team/mine/", Selection("Team", "mine")),
        ("wandb://team/mine/abc123", Selection("team", "mine", "abc123")),
        ("wandb://team/mine?group=b&group=a%26c", Selection("team", "mine", groups=("a&c", "b"))),
        ("wandb://team/my%20project/s?group=a", Selection("team", "my project", "s", ("a",))),
    ):
        assert Selection.parse(address) == selection
        assert Selection.parse(str(selection)) == selection


@pytest.mark.parametrize("rest", ["", "team", "team/", "/mine", "team/mine/s/run", "t/m?job=a", "t/m?group=", "t/m#a"])
def test_an_invalid_address_is_refused_with_the_valid_forms(rest):
    with pytest.raises(ValueError, match=r"wandb://ENTITY/PROJECT\?group=NAME") as caught:
        Selection.parse(f"wandb://{rest}")
    assert str(caught.value).startswith(f"wandb://{rest}: ")


def test_each_selection_has_a_folder_of_its_own():
    addresses = ("t/m", "t/m/s", "t/m?group=a", "t/m/s?group=a", "t/m?group=..%2F..", "t/..")
    places = {Selection.parse(f"wandb://{address}").folders for address in addresses}
    assert len(places) == len(addresses)
    assert not [part for place in places for part in place if "/" in part or part.startswith(".")]
